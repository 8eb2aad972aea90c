"""Chains whose scores are linear in features, and the likelihood of conditional random fields."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from lmbm_torch.kernels.installed import kernels
from lmbm_torch.kernels.threads import share
from lmbm_torch.solvers.base import TINY
from lmbm_torch.solvers.chains.problems import LabelledChains
from lmbm_torch.solvers.networks.problems import Features, feature_rows
from lmbm_torch.solvers.structural.linear import Curvature, LinearOutputs

# Chains are shared by threads in so many blocks of about as many positions.
BLOCKS = 8


@dataclass(frozen=True, eq=False)
class LinearChains(LabelledChains, LinearOutputs):
    """score(x, y) = Σ_t ⟨w_{y_t}, x_t⟩ + b_{y_t} + Σ_t v_{y_t, y_{t+1}}, with losses of chains that C weighs.

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
    def num_outputs(self) -> int:
        return self.num_states

    @property
    def num_couplings(self) -> int:
        return self.num_states**2

    def transition(self, flat: np.ndarray) -> np.ndarray:
        """The couplings as a matrix (states, states)."""
        return self.couplings(flat).reshape(self.num_states, -1)

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

    def curvature_of(self, errors: np.ndarray, pairs: np.ndarray, coupling_penalty: float = 1.0) -> Curvature:
        """That of ½‖w‖² and the losses, whose gradient by scores and transitions is as given.

        Positions are taken for independent; a pair is in doubt where either of its positions is.
        """
        variances = np.abs(errors)
        variances -= variances * (variances / np.maximum(self._position_weights, TINY)[:, None])
        in_doubt = variances.sum() / max(self._position_weights.sum(), TINY)
        expected = np.maximum(pairs + self._true_pairs, 0.0)
        return self.curvature(variances, coupling_penalty + 2.0 * in_doubt * expected)

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


@dataclass(frozen=True, eq=False)
class LikelihoodProblem(LinearChains):
    """min_w ½‖w‖² − Σ_x C_x log p(y_x | x), p ∝ exp(score), see :class:`LinearChains`.

    max_margin_markov_networks_survey_2003, Equation 12; biases and transitions are regularised like other
    weights.
    """

    def value_and_gradient(self, flat: np.ndarray) -> tuple[float, np.ndarray]:
        """The objective and its gradient."""
        loss, errors, pairs = self.losses(self.scores(flat), self.transition(flat))
        gradient = self.by_weights(errors, pairs)
        gradient += flat
        return 0.5 * float(flat @ flat) + loss, gradient

    def curvature_at(self, flat: np.ndarray) -> Curvature:
        """An estimate of the objective's Hessian."""
        return self.curvature_of(*self.losses(self.scores(flat), self.transition(flat))[1:])
