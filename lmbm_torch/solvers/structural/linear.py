"""Scores of structured outputs that are linear in features: by weights, and how losses bend along these."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy import sparse

from lmbm_torch.solvers.base import TINY, SolverState
from lmbm_torch.solvers.networks.problems import Features
from lmbm_torch.solvers.structural.problems import StructuralWeights

# Dense features are squared so many rows at a time.
ROWS_AT_ONCE = 4096


class FlatState(SolverState):
    """A state with weights as :class:`LinearOutputs` takes them."""

    flat: np.ndarray
    num_couplings: int
    num_outputs: int

    @cached_property
    def weights(self) -> StructuralWeights:
        """Of the features, biases included, and of the couplings."""
        end = len(self.flat) - self.num_couplings
        features = self.flat[:end].reshape(-1, self.num_outputs)
        return StructuralWeights(features.T.copy(), self.flat[end:].copy())


@dataclass(frozen=True, eq=False)
class Curvature:
    """An estimate of an objective's Hessian by flat weights, of simple parts.

    Args:
        diagonal: (features + 1, outputs), and
        direction: (features + 1, outputs): of each output's weights, a diagonal and the outer product of one
            direction, that of features that are all far from zero.
        couplings: (couplings,), a diagonal alone.
    """

    diagonal: np.ndarray
    direction: np.ndarray
    couplings: np.ndarray

    def solve(self, gradient: np.ndarray) -> np.ndarray:
        """The flat step whose image is this flat gradient (Sherman and Morrison)."""
        step = gradient[: self.diagonal.size].reshape(self.diagonal.shape) / self.diagonal
        along = np.einsum("jk,jk->k", self.direction, step)
        step -= self._image * (along / (1.0 + np.einsum("jk,jk->k", self.direction, self._image)))
        return np.concatenate([step.ravel(), gradient[self.diagonal.size :] / self.couplings])

    @cached_property
    def _image(self) -> np.ndarray:
        return self.direction / self.diagonal


class LinearOutputs:
    """Scores ⟨w_k, x_t⟩ + b_k of each row's outputs, and couplings whose weights no feature changes.

    Weights are flat: (features, bias) by outputs, so that what one entry of a sparse row meets lies together,
    then the couplings.
    """

    features: Features

    @property
    @abstractmethod
    def num_outputs(self) -> int: ...

    @property
    @abstractmethod
    def num_couplings(self) -> int: ...

    @property
    def num_features(self) -> int:
        return self.features.shape[1]  # pyright: ignore[reportOptionalSubscript]

    @property
    def num_weights(self) -> int:
        return (self.num_features + 1) * self.num_outputs + self.num_couplings

    def scores(self, flat: np.ndarray) -> np.ndarray:
        """Without couplings, (rows, outputs)."""
        rows = flat[: self.num_weights - self.num_couplings].reshape(-1, self.num_outputs)
        return self.features @ rows[:-1] + rows[-1]

    def couplings(self, flat: np.ndarray) -> np.ndarray:
        """(couplings,)."""
        return flat[self.num_weights - self.num_couplings :]

    def by_weights(self, errors: np.ndarray, couplings: np.ndarray) -> np.ndarray:
        """The flat gradient that one by scores (rows, outputs) and couplings makes."""
        return np.concatenate([(self.features.T @ errors).ravel(), errors.sum(0), couplings.ravel()])

    def curvature(self, variances: np.ndarray, couplings: np.ndarray) -> Curvature:
        """Of ½‖w‖² and losses, as if rows and outputs were independent.

        Args:
            variances: (rows, outputs), of each output, times its loss's weight.
            couplings: (couplings,), the second derivatives by each coupling, penalty included.
        """
        of_outputs = variances.sum(0)
        means = self.features.T @ variances
        squares = _products_of_squares(self.features, variances)
        squares -= np.square(means) / np.maximum(of_outputs, TINY)
        direction = np.vstack([means, of_outputs]) / np.sqrt(np.maximum(of_outputs, TINY))
        diagonal = np.ones_like(direction)
        diagonal[:-1] += np.maximum(squares, 0.0)
        return Curvature(diagonal, direction, couplings.ravel())


def _products_of_squares(features: Features, values: np.ndarray) -> np.ndarray:
    """Σ_t x_tj² values_ts, (features, outputs), of ``values`` (rows, outputs)."""
    rows: Any = features
    if sparse.issparse(rows):
        squares = np.square(rows.data, dtype=np.float64)
        return sparse.csr_array((squares, rows.indices, rows.indptr), rows.shape).T @ values
    total = np.zeros((rows.shape[1], values.shape[1]))
    for first in range(0, len(values), ROWS_AT_ONCE):
        part = slice(first, first + ROWS_AT_ONCE)
        total += np.square(rows[part], dtype=np.float64).T @ values[part]
    return total
