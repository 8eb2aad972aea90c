"""Chains whose scores are linear in features: losses by weights, and how fast their gradient turns."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from scipy import sparse

from lmbm_torch.backends.installed import kernels
from lmbm_torch.backends.threads import share
from lmbm_torch.solvers.base import TINY, SolverState
from lmbm_torch.solvers.chains.problems import LabelledChains
from lmbm_torch.solvers.networks.problems import Features, feature_rows
from lmbm_torch.solvers.structural.problems import StructuralWeights

# Chains are shared by threads in so many blocks of about as many positions.
BLOCKS = 8
# Dense features are squared so many rows at a time.
ROWS_AT_ONCE = 4096


class FlatState(SolverState):
    """A state with weights as :class:`LinearChains` takes them."""

    flat: np.ndarray
    num_states: int

    @cached_property
    def weights(self) -> StructuralWeights:
        """Of the features, biases included, and of the transitions, flat by rows."""
        rows = self.flat.reshape(-1, self.num_states)
        return StructuralWeights(rows[: -self.num_states].T.copy(), rows[-self.num_states :].ravel().copy())


@dataclass(frozen=True, eq=False)
class Curvature:
    """An estimate of an objective's Hessian by flat weights, of simple parts.

    Args:
        diagonal: (features + 1, states), and
        direction: (features + 1, states): of each state's weights, a diagonal and the outer product of one
            direction, that of features that are all far from zero.
        transitions: (states, states), a diagonal alone.
    """

    diagonal: np.ndarray
    direction: np.ndarray
    transitions: np.ndarray

    def solve(self, gradient: np.ndarray) -> np.ndarray:
        """The flat step whose image is this flat gradient (Sherman and Morrison)."""
        rows = gradient.reshape(-1, len(self.transitions))
        step = rows[: -len(self.transitions)] / self.diagonal
        along = np.einsum("js,js->s", self.direction, step)
        step -= self._image * (along / (1.0 + np.einsum("js,js->s", self.direction, self._image)))
        return np.concatenate([step.ravel(), (rows[-len(self.transitions) :] / self.transitions).ravel()])

    @cached_property
    def _image(self) -> np.ndarray:
        return self.direction / self.diagonal


@dataclass(frozen=True, eq=False)
class LinearChains(LabelledChains):
    """score(x, y) = Σ_t ⟨w_{y_t}, x_t⟩ + b_{y_t} + Σ_t v_{y_t, y_{t+1}}, with losses of chains that C weighs.

    Weights are flat: (features, bias, transitions) by states, so that what one entry of a sparse row meets
    lies together.

    Args:
        features: (positions, features), float32 or float64, dense or CSR, one chain after another.
        labels: (positions,), states.
        start: (chains + 1,), where each chain's positions begin.
        num_states: S.
        C: the losses' weight.
        sample_weight: (chains,), multiplies C.

    Raises:
        ValueError: shapes that do not fit, labels that are no states, values that are not finite, C not above
            zero.
        TypeError: features that are neither float32 nor float64.
    """

    features: Features
    labels: np.ndarray
    start: np.ndarray
    num_states: int
    C: float = 1.0
    sample_weight: np.ndarray | None = None
    upper: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "features", feature_rows(self.features))
        self._check(self.features.shape[0])  # pyright: ignore[reportOptionalSubscript]

    @property
    def num_features(self) -> int:
        return self.features.shape[1]  # pyright: ignore[reportOptionalSubscript]

    @property
    def num_weights(self) -> int:
        return (self.num_features + 1 + self.num_states) * self.num_states

    def scores(self, flat: np.ndarray) -> np.ndarray:
        """Of all positions without transitions, (positions, states)."""
        weights = flat.reshape(-1, self.num_states)
        return self.features @ weights[: -self.num_states - 1] + weights[-self.num_states - 1]

    def transition(self, flat: np.ndarray) -> np.ndarray:
        """(states, states)."""
        return flat.reshape(-1, self.num_states)[-self.num_states :]

    def losses(self, scores: np.ndarray, transition: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        """Σ_x C_x (log Σ_y exp score(y) − score(y_x)), and its gradient by scores and transitions."""
        backend = kernels("dual.chain_likelihood", "chain CRFs")
        # Always as many blocks, so that sums do not depend on how many threads share them.
        ends = np.searchsorted(self.start, np.linspace(0, len(scores), BLOCKS + 1))
        losses, errors = np.zeros(BLOCKS), np.empty_like(scores)
        pairs = np.zeros((BLOCKS, *transition.shape))

        def compute(block: int) -> None:
            first, end = ends[block : block + 2]
            start, upper = self.start[first : end + 1], self.upper[first:end]
            losses[block] = backend.loss_and_gradient(
                scores, transition, start, self.labels, upper, errors, pairs[block]
            )

        share(range(BLOCKS), compute)
        return float(losses.sum()), errors, pairs.sum(0)

    def by_weights(self, errors: np.ndarray, pairs: np.ndarray) -> np.ndarray:
        """The flat gradient by weights that one by scores and transitions makes."""
        return np.concatenate([(self.features.T @ errors).ravel(), errors.sum(0), pairs.ravel()])

    def curvature(self, errors: np.ndarray, pairs: np.ndarray, coupling_penalty: float = 1.0) -> Curvature:
        """Of ½‖w‖² + Σ_x C_x loss, where the losses' gradient by scores and transitions is as given.

        From the variance of each position's labels, as if positions and states were independent; a pair is in
        doubt where either of its positions is.

        Args:
            coupling_penalty: multiplies the transitions' squares in ‖w‖².
        """
        variances = np.abs(errors)
        variances -= variances * (variances / np.maximum(self._position_weights, TINY)[:, None])
        of_states = variances.sum(0)
        means = self.features.T @ variances
        squares = _products_of_squares(self.features, variances)
        squares -= np.square(means) / np.maximum(of_states, TINY)
        direction = np.vstack([means, of_states]) / np.sqrt(np.maximum(of_states, TINY))
        diagonal = np.ones_like(direction)
        diagonal[:-1] += np.maximum(squares, 0.0)
        in_doubt = of_states.sum() / max(self._position_weights.sum(), TINY)
        expected = np.maximum(pairs + self._true_pairs, 0.0)
        return Curvature(diagonal, direction, coupling_penalty + 2.0 * in_doubt * expected)

    @cached_property
    def _position_weights(self) -> np.ndarray:
        """C_x of each position, (positions,)."""
        return np.repeat(self.upper, self.lengths)

    @cached_property
    def _true_pairs(self) -> np.ndarray:
        """How often the labels go from one state to another, weighted, (states, states)."""
        steps, counts = self.step_starts, np.zeros((self.num_states, self.num_states))
        np.add.at(counts, (self.labels[steps], self.labels[steps + 1]), self._position_weights[steps])
        return counts


def _products_of_squares(features: Features, values: np.ndarray) -> np.ndarray:
    """Σ_t x_tj² values_ts, (features, states), of ``values`` (positions, states)."""
    rows: Any = features
    if sparse.issparse(rows):
        squares = np.square(rows.data, dtype=np.float64)
        return sparse.csr_array((squares, rows.indices, rows.indptr), rows.shape).T @ values
    total = np.zeros((rows.shape[1], values.shape[1]))
    for first in range(0, len(values), ROWS_AT_ONCE):
        part = slice(first, first + ROWS_AT_ONCE)
        total += np.square(rows[part], dtype=np.float64).T @ values[part]
    return total
