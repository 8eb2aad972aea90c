"""Kernels with scikit-learn's names and parameters, and feature maps of kernels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy import sparse
from sklearn.metrics.pairwise import pairwise_kernels
from torch import Tensor

from lmbm_torch.fitting import recipe
from lmbm_torch.fitting.recipe import Units
from lmbm_torch.memory import limit_bytes, part_bytes
from lmbm_torch.persistence.stored import Given, Stored
from lmbm_torch.solvers.gram import CachedGram, Gram, Index, PrecomputedGram, linear, polynomial, rbf

# Number of new instances whose kernel values are computed at once.
_ROWS_AT_ONCE = 1024
# Number of instances whose values k(x, x) are computed at once; a whole square of values is computed.
_SQUARES_AT_ONCE = 64
# Number of rows of a symmetric kernel matrix computed at once; only the upper half is computed.
_SYMMETRIC_ROWS = 256
# Largest memory, in bytes, for the kernel values of all pairs of instances.
_MAX_GRAM_BYTES = 2**34
# Smaller eigenvalues of a kernel matrix, relative to the largest, are dropped as rounding errors.
_LEAST_EIGENVALUE = 1e-10


@dataclass(frozen=True)
class Kernel(Stored):
    """A kernel function with its parameters, and a scaling of the features.

    Args:
        kernel: ``"rbf"``, ``"poly"``, ``"linear"``, ``"precomputed"``, or a function of two sets of features
            that returns the matrix of kernel values.
        gamma: parameter of ``rbf`` and ``poly``.
        degree, coef0: parameters of ``poly``.
        device: device on which the values of dense features are computed.
        shift, scale: (features,), the kernel is computed of (x − shift) / scale; 0 and 1 for no scaling.
    """

    kernel: str | Callable[[Any, Any], Any]
    gamma: float
    degree: float
    coef0: float
    device: str
    shift: np.ndarray | float = 0.0
    scale: np.ndarray | float = 1.0

    @classmethod
    def from_parts(cls, given: Given, **parts: Any) -> Kernel:
        """Build the kernel from parts read from a file, for the device that was given at reading."""
        return cls(**{**parts, "device": given.device})

    @classmethod
    def of(cls, estimator: Any, X: Any, sample_weight: np.ndarray | None, device: str = "cpu") -> Kernel:
        """Build the kernel of an estimator, with gamma and the scaling computed from training instances X.

        Features are scaled if C is a multiple of ``"scale"`` and the kernel is named, such as ``"rbf"``.

        Args:
            estimator: an estimator with ``kernel``, ``gamma``, ``kernel_degree``, ``coef0`` and ``C``.
        """
        kernel = estimator.kernel
        has_units = isinstance(kernel, str) and kernel != "precomputed"
        if has_units:
            _check_squares(X)
        units = recipe.units(estimator.C if has_units else 1.0, X, sample_weight)
        gamma = resolved_gamma(estimator.gamma, units.scaled(X))
        settings = gamma, estimator.kernel_degree, estimator.coef0
        return cls(kernel, *settings, device, units.shift, units.scale)

    @property
    def is_precomputed(self) -> bool:
        return self.kernel == "precomputed"

    def gram(self, X, cache_bytes: int) -> Gram:
        """Return the kernel values of all pairs of rows of X (instances, features), or X if precomputed."""
        if self.is_precomputed:
            if sparse.issparse(X):
                raise ValueError("X: expected a dense matrix of kernel values, got a sparse matrix")
            return PrecomputedGram(torch.from_numpy(_writable(X)).to(self.device))
        instances = self._prepared(X, sparse.issparse(X))

        # Compute the norms once, because in each call the norms would take a quarter of the time.
        square_norms = instances.square().sum(1) if isinstance(instances, Tensor) else None

        def values(rows: Index, columns: Index) -> Tensor:
            first, second = _entries(rows), _entries(columns)
            known = None if square_norms is None else square_norms[second]
            return self._values(instances[first], instances[second], known)

        return CachedGram(values, X.shape[0], cache_bytes)

    def squares(self, X) -> np.ndarray:
        """Return k(x, x) of all instances of X, (instances,)."""
        if self.is_precomputed:
            return X.diagonal()
        instances, number = self._prepared(X, sparse.issparse(X)), X.shape[0]
        parts = (instances[first : first + _SQUARES_AT_ONCE] for first in range(0, number, _SQUARES_AT_ONCE))
        return np.concatenate([self._values(part, part).diagonal().cpu().numpy() for part in parts])

    def matrix(self, X) -> np.ndarray:
        """Return the kernel values of all pairs of instances, (instances, instances)."""
        gram, number = self.gram(X, cache_bytes=0), X.shape[0]
        found = np.empty((number, number), X.dtype)
        # Use symmetry only for named kernels, because a user's function or matrix may be asymmetric.
        is_named = not (self.is_precomputed or callable(self.kernel))
        # Work in batches of rows, so Ctrl-C can stop the computation between batches.
        step = min(_rows_at_once(number), _SYMMETRIC_ROWS) if is_named else _rows_at_once(number)
        for first in range(0, number, step):
            rows, columns = slice(first, first + step), slice(first if is_named else 0, None)
            values = gram.between(rows, columns).cpu().numpy()
            found[rows, columns] = values
            if is_named:
                found[columns, rows] = values.T
        return found

    def expand(self, X, fitted, dual_coef: np.ndarray) -> np.ndarray:
        """Return Σ_j dual_coef_kj k(x, fitted_j), (instances, outputs), in double precision.

        Args:
            X: (instances, features); for a precomputed kernel, the kernel values (instances, fitted).
            fitted: (fitted, features), the support vectors; None for a precomputed kernel.
            dual_coef: (outputs, fitted), the coefficients.
        """
        if self.is_precomputed:
            return X @ dual_coef.T
        is_sparse = sparse.issparse(X) or sparse.issparse(fitted)
        known = self._prepared(fitted, is_sparse)
        parts, step = [], _rows_at_once(fitted.shape[0])
        for first in range(0, X.shape[0], step):
            some = X[first : first + step].astype(fitted.dtype, copy=False)
            values = self._values(self._prepared(some, is_sparse), known).cpu().numpy()
            parts.append(values.astype(np.float64, copy=False) @ dual_coef.T)
        return np.concatenate(parts)

    def _prepared(self, X: Any, is_sparse: bool) -> Any:
        """Scale features; for a named kernel, also convert dense features to a tensor on the device.

        Args:
            is_sparse: whether X, or the features with which X is compared, are sparse.
        """
        scaled: Any = Units(1.0, self.shift, self.scale).scaled(X)
        if is_sparse or callable(self.kernel):
            return scaled
        return torch.from_numpy(_writable(scaled)).to(self.device)

    def _values(self, first, second, square_norms: Tensor | None = None) -> Tensor:
        """Return the kernel values of all pairs of ``first`` and ``second``, as a tensor on the device.

        Args:
            square_norms: squared norms of the rows of ``second``, if already computed.
        """
        if callable(self.kernel):
            return torch.as_tensor(self.kernel(first, second), device=self.device)
        if not isinstance(first, Tensor):
            parameters = {"gamma": self.gamma, "degree": self.degree, "coef0": self.coef0}
            values = pairwise_kernels(first, second, metric=self.kernel, filter_params=True, **parameters)
            return torch.as_tensor(values, device=self.device)
        if self.kernel == "linear":
            return linear(first, second)
        if self.kernel == "poly":
            return polynomial(first, second, self.gamma, self.degree, self.coef0)
        return rbf(first, second, self.gamma, square_norms)


def check_gram(rows: int) -> None:
    """Raise ValueError if the kernel values of all pairs exceed the memory limit."""
    needed, most = 8 * rows**2, limit_bytes(_MAX_GRAM_BYTES)
    if needed > most:
        raise ValueError(
            f"kernel: expected kernel values of at most {most / 2**30:.3g} GiB, got {needed / 2**30:.3g} GiB "
            f"for {rows} rows; lmbm_torch.memory_budget sets the limit, and the linear kernel needs none"
        )


@dataclass(frozen=True)
class KernelMap(Stored):
    """A map to features whose inner products are kernel values, so linear solvers can learn with kernels.

    Attributes:
        kernel: the kernel.
        fitted: (instances, features), the training instances.
        basis: (instances, rank); the features of x are k(x, fitted) @ basis.

    Raises:
        ValueError: see :meth:`of`.
    """

    kernel: Kernel
    fitted: np.ndarray
    basis: np.ndarray

    @classmethod
    def of(cls, kernel: Kernel, X: np.ndarray) -> KernelMap:
        """Build the map from training instances X (instances, features), by eigenvectors of kernel values.

        Raises:
            ValueError: the kernel values need too much memory, or are not symmetric or not positive
                semidefinite.
        """
        check_gram(len(X))
        values = kernel.matrix(X)
        if np.abs(values - values.T).max(initial=0) > 1e-9 * np.abs(values).max(initial=0):
            raise ValueError("kernel: expected k(x, z) = k(z, x) for all instances, got unequal values")
        eigenvalues, vectors = np.linalg.eigh(values)
        if eigenvalues[0] < -1e-8 * max(eigenvalues[-1], np.finfo(float).tiny):
            raise ValueError(
                f"kernel: expected positive semidefinite values, got an eigenvalue of {eigenvalues[0]:.3g}"
            )
        some = eigenvalues > _LEAST_EIGENVALUE * eigenvalues[-1]
        return cls(kernel, X, vectors[:, some] / np.sqrt(eigenvalues[some]))

    def __call__(self, X: np.ndarray) -> np.ndarray:
        """Return the features (instances, rank) of instances X (instances, features)."""
        return self.kernel.expand(X, self.fitted, np.ascontiguousarray(self.basis.T))


def relative_penalty(C: float | str, kernel: Kernel, X: Any, sample_weight: np.ndarray | None) -> float:
    """Convert the setting ``C`` to the weight of the losses; ``"scale"`` means 1 / mean of k(x, x)."""
    factor = recipe.multiple(C)
    if factor is None:
        return float(C)
    square = float(np.average(kernel.squares(X), weights=sample_weight))
    return factor / square if square > 0 else factor


def _check_squares(X) -> None:
    """Raise ValueError if sums of squared features overflow."""
    values = X.data if sparse.issparse(X) else X
    largest = float(np.abs(values).max(initial=0))
    if largest < (float(np.finfo(values.dtype).max) / (X.shape[0] * X.shape[1])) ** 0.5:
        return
    raise ValueError(
        f"X: expected features whose squares have a finite sum, got {largest:.3g}; scale the features first"
    )


def resolved_gamma(gamma: Any, X) -> float:
    """Convert gamma to a number: ``"scale"`` is 1 / (features · variance of X), ``"auto"`` 1 / features."""
    if gamma == "auto":
        return 1 / X.shape[1]
    if gamma == "scale":
        square = X.multiply(X).mean() if sparse.issparse(X) else np.square(X).mean()
        variance = float(square - X.mean() ** 2)
        return 1 / (X.shape[1] * variance) if variance > 0 else 1.0
    return float(gamma)


def _rows_at_once(width: int) -> int:
    """Return how many rows with ``width`` kernel values each are computed at once; limits memory."""
    return max(1, part_bytes(8 * _ROWS_AT_ONCE * width) // (8 * width))


def _entries(index: Index) -> np.ndarray | slice:
    return index if isinstance(index, slice) else index.numpy()


def _writable(X: np.ndarray) -> np.ndarray:
    """Return a row-major, writable array: torch warns of read-only arrays, so these are copied."""
    return np.require(X, requirements=["C", "W"])
