"""Scores of structured outputs that are linear in features, and estimates of the losses' Hessian."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from scipy import sparse

from lmbm_torch.checks import check_finite
from lmbm_torch.solvers.base import TINY, SolverState
from lmbm_torch.solvers.networks.problems import Features
from lmbm_torch.solvers.structural.problems import StructuralWeights

# Number of rows of dense features in one matrix product.
ROWS_AT_ONCE = 4096
# Largest number of columns (in all; for each output) at which the Hessian estimate uses all pairs of columns:
# the products of pairs then take about as long as four gradients.
MOST_COLUMNS, COLUMNS_AN_OUTPUT = 512, 16
INNER_PRODUCTS = "features: inner products"


class FlatState(SolverState):
    """A state whose weights are flat as in :class:`LinearOutputs`."""

    flat: np.ndarray
    num_couplings: int
    num_outputs: int

    @cached_property
    def weights(self) -> StructuralWeights:
        """Return the weights of the features, biases included, and of the couplings."""
        end = len(self.flat) - self.num_couplings
        features = self.flat[:end].reshape(-1, self.num_outputs)
        return StructuralWeights(features.T.copy(), self.flat[end:].copy())


class Curvature(Protocol):
    """An estimate of an objective's Hessian that is easy to invert; weights are flat vectors."""

    def solve(self, gradient: np.ndarray) -> np.ndarray:
        """Return H⁻¹ · gradient for the estimated Hessian H; both vectors are flat."""
        ...


@dataclass(frozen=True, eq=False)
class ColumnCurvature:
    """A Hessian estimate for many columns: for each output, a diagonal plus an outer product.

    Args:
        diagonal: (features + 1, outputs).
        direction: (features + 1, outputs), the common direction of features far from zero.
        couplings: (couplings,), the diagonal of the couplings' Hessian.
    """

    diagonal: np.ndarray
    direction: np.ndarray
    couplings: np.ndarray

    def solve(self, gradient: np.ndarray) -> np.ndarray:
        """Return H⁻¹ · gradient by the formula of Sherman and Morrison, see :class:`Curvature`."""
        step = gradient[: self.diagonal.size].reshape(self.diagonal.shape) / self.diagonal
        along = np.einsum("jk,jk->k", self.direction, step)
        step -= self._image * (along / (1.0 + np.einsum("jk,jk->k", self.direction, self._image)))
        return np.concatenate([step.ravel(), gradient[self.diagonal.size :] / self.couplings])

    @cached_property
    def _image(self) -> np.ndarray:
        return self.direction / self.diagonal


@dataclass(frozen=True, eq=False)
class GramCurvature:
    """A Hessian estimate for few columns: for each output, the identity plus a multiple of a common matrix.

    Args:
        vectors: (features + 1, features + 1), the common matrix's eigenvectors in columns.
        diagonal: (features + 1, outputs), in the eigenvectors' coordinates.
        couplings: (couplings,), the diagonal of the couplings' Hessian.
    """

    vectors: np.ndarray
    diagonal: np.ndarray
    couplings: np.ndarray

    def solve(self, gradient: np.ndarray) -> np.ndarray:
        """Return H⁻¹ · gradient, computed in the eigenvectors' coordinates, see :class:`Curvature`."""
        rows = gradient[: self.diagonal.size].reshape(self.diagonal.shape)
        step = self.vectors @ ((self.vectors.T @ rows) / self.diagonal)
        return np.concatenate([step.ravel(), gradient[self.diagonal.size :] / self.couplings])


class LinearOutputs(ABC):
    """Base class for problems with scores ⟨w_k, x_t⟩ + b_k of row t and output k, and with couplings.

    Weights are a flat vector: first the matrix (features and bias, outputs) row by row, then the couplings.
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
        """Return the scores without couplings, (rows, outputs)."""
        rows = flat[: self.num_weights - self.num_couplings].reshape(-1, self.num_outputs)
        return self.features @ rows[:-1] + rows[-1]

    def couplings(self, flat: np.ndarray) -> np.ndarray:
        """Return the part of the flat weights that belongs to the couplings, (couplings,)."""
        return flat[self.num_weights - self.num_couplings :]

    def by_weights(self, errors: np.ndarray, couplings: np.ndarray) -> np.ndarray:
        """Return the flat gradient in the weights, from gradients in scores (rows, outputs) and couplings."""
        return np.concatenate([(self.features.T @ errors).ravel(), errors.sum(0), couplings.ravel()])

    def curvature(self, variances: np.ndarray, couplings: np.ndarray) -> Curvature:
        """Estimate the Hessian of ½‖w‖² plus the losses, as if rows and outputs were independent.

        Args:
            variances: (rows, outputs), the variance of each output times the weight of the loss.
            couplings: (couplings,), the second derivatives in each coupling, penalty included.

        Raises:
            ValueError: features are so large that inner products are not finite.
        """
        if self.num_features <= min(MOST_COLUMNS, COLUMNS_AN_OUTPUT * self.num_outputs):
            return self._gram_curvature(variances, couplings)
        return self._column_curvature(variances, couplings)

    def _gram_curvature(self, variances: np.ndarray, couplings: np.ndarray) -> GramCurvature:
        of_rows, of_outputs = variances.sum(1), variances.sum(0)
        gram = _gram(self.features, of_rows)
        check_finite(INNER_PRODUCTS, gram)
        values, vectors = np.linalg.eigh(gram)
        shares = of_outputs / max(of_outputs.sum(), TINY)
        diagonal = 1.0 + np.outer(np.maximum(values, 0.0), shares)
        return GramCurvature(vectors, diagonal, couplings.ravel())

    def _column_curvature(self, variances: np.ndarray, couplings: np.ndarray) -> ColumnCurvature:
        of_outputs = variances.sum(0)
        means = self.features.T @ variances
        squares = _products_of_squares(self.features, variances)
        check_finite(INNER_PRODUCTS, squares)
        squares -= np.square(means) / np.maximum(of_outputs, TINY)
        direction = np.vstack([means, of_outputs]) / np.sqrt(np.maximum(of_outputs, TINY))
        diagonal = np.ones_like(direction)
        diagonal[:-1] += np.maximum(squares, 0.0)
        return ColumnCurvature(diagonal, direction, couplings.ravel())


def _gram(features: Features, weights: np.ndarray) -> np.ndarray:
    """Return the weighted Gram matrix Σ_t weights_t x_t x_tᵀ, with the constant 1 as last feature."""
    rows: Any = features
    size = rows.shape[1]
    gram = np.empty((size + 1, size + 1))
    if sparse.issparse(rows):
        gram[:-1, :-1] = (rows.T @ rows.multiply(weights[:, None]).tocsr()).toarray()
    else:
        gram[:-1, :-1] = 0.0
        for part in _parts(rows):
            gram[:-1, :-1] += (rows[part].T * weights[part]) @ rows[part]
    gram[:-1, -1] = gram[-1, :-1] = rows.T @ weights
    gram[-1, -1] = weights.sum()
    return gram


def _parts(rows: np.ndarray) -> Iterator[slice]:
    return (slice(first, first + ROWS_AT_ONCE) for first in range(0, len(rows), ROWS_AT_ONCE))


def _products_of_squares(features: Features, values: np.ndarray) -> np.ndarray:
    """Return the sums Σ_t x_tj² values_ts, (features, outputs), for ``values`` (rows, outputs)."""
    rows: Any = features
    if sparse.issparse(rows):
        squares = np.square(rows.data, dtype=np.float64)
        return sparse.csr_array((squares, rows.indices, rows.indptr), rows.shape).T @ values
    total = np.zeros((rows.shape[1], values.shape[1]))
    for part in _parts(rows):
        total += np.square(rows[part], dtype=np.float64).T @ values[part]
    return total
