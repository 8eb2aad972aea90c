"""Kernel functions, and kernel values between training instances: from a matrix, or computed on demand.

A kernel function takes the rows of two feature sets and returns the values of all pairs, ``(first, second)``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from lmbm_torch.checks import check_count, check_finite, check_shape
from lmbm_torch.memory import part_bytes
from lmbm_torch.shapes import Float, Int


def linear(
    first: Float[Tensor, "first features"], second: Float[Tensor, "second features"]
) -> Float[Tensor, "first second"]:
    """Return the inner products ⟨x, x'⟩ of all pairs of rows."""
    return first @ second.mT


def polynomial(
    first: Float[Tensor, "first features"],
    second: Float[Tensor, "second features"],
    gamma: float,
    degree: float,
    coef0: float,
) -> Float[Tensor, "first second"]:
    """Return (gamma ⟨x, x'⟩ + coef0)^degree for all pairs of rows."""
    return (gamma * (first @ second.mT) + coef0).pow(degree)


def rbf(
    first: Float[Tensor, "first features"],
    second: Float[Tensor, "second features"],
    gamma: float,
    square_norms: Float[Tensor, " second"] | None = None,
) -> Float[Tensor, "first second"]:
    """Return exp(−gamma ‖x − x'‖²) with gamma = 1/(2σ²); values below the dtype's normal numbers become 0.

    Args:
        square_norms: ‖x'‖², if known.
    """
    if square_norms is None:
        square_norms = second.square().sum(1)
    square = torch.addmm(square_norms, first, second.mT, beta=-0.5).mul_(2)
    square -= first.square().sum(1)[:, None]
    # Clamp the exponents: round-off can make a squared distance negative, and exponentials that underflow
    # take ten times as long. Powers of two take a quarter of the time of powers of e.
    lowest = math.log2(torch.finfo(square.dtype).tiny) + 2
    values = square.mul_(gamma / math.log(2)).clamp_(lowest, 0).exp2_()
    return torch.threshold_(values, 2 ** (lowest + 1), 0.0)


Index = Tensor | slice
PairKernel = Callable[[Index, Index], Tensor]
"""Function of the indices of two sets of instances that returns the kernel values, ``(rows, columns)``."""


class Gram(Protocol):
    """Access by rows to a symmetric positive semidefinite matrix of kernel values."""

    num_instances: int

    def rows(self, index: Int[Tensor, " rows"] | slice) -> Float[Tensor, "rows instances"]:
        """Return the kernel values of the instances ``index`` with all instances; do not write to them."""
        ...

    def between(
        self, rows: Int[Tensor, " rows"] | slice, columns: Int[Tensor, " columns"] | slice
    ) -> Float[Tensor, "rows columns"]:
        """Return the kernel values of the instances ``rows`` with ``columns``; do not write to the values."""
        ...


BLOCK = 256


class PrecomputedGram:
    """A matrix of kernel values in memory.

    Args:
        matrix: kernel values, symmetric. The caller ensures that the matrix is positive semidefinite.

    Raises:
        ValueError: the matrix is not (instances, instances), not finite or not symmetric.
    """

    def __init__(self, matrix: Float[Tensor, "instances instances"]) -> None:
        check_shape("matrix", matrix, len(matrix), len(matrix))
        check_finite("matrix", matrix)
        largest = asymmetry(matrix)
        if largest > 1e-5 * max(float(matrix.max()), -float(matrix.min())):
            raise ValueError(f"matrix: expected a symmetric matrix, got differences of up to {largest}")
        self.matrix = matrix
        self.num_instances = len(matrix)

    def rows(self, index: Int[Tensor, " rows"] | slice) -> Float[Tensor, "rows instances"]:
        return self.matrix[index]

    def between(
        self, rows: Int[Tensor, " rows"] | slice, columns: Int[Tensor, " columns"] | slice
    ) -> Float[Tensor, "rows columns"]:
        return _between(self.matrix, rows, columns)


class CachedGram:
    """Kernel rows computed on request; the first rows requested are kept, as many as fit into memory.

    Kept rows are never replaced: solvers visit all instances in turn, so the row just computed is the row
    needed again last. If all rows fit, a solver that reads all pairs fills the cache.

    Args:
        kernel: function of two index sets, returning kernel values.
        num_instances: the number of instances.
        cache_bytes: the largest number of bytes of the kept rows; computing a block of rows needs more.

    Attributes:
        single: (instances, instances), all kernel values in single precision, stored by one solver for the
            next solver; do not write to the array.

    Raises:
        ValueError: ``num_instances`` is below one.
    """

    single: np.ndarray | None = None

    def __init__(self, kernel: PairKernel, num_instances: int, cache_bytes: int = 2**29) -> None:
        check_count("num_instances", num_instances)
        self.num_instances = num_instances
        self._kernel = kernel
        self._cache_bytes = cache_bytes
        self._kept: Tensor | None = None
        self._slot = torch.full((num_instances,), -1, device="cpu")
        self._used = 0
        self._is_matrix = False

    def rows(self, index: Int[Tensor, " rows"] | slice) -> Float[Tensor, "rows instances"]:
        """Return the kernel values of the instances ``index`` with all instances, from memory if kept."""
        kept = self._room()
        if self._is_matrix:
            return kept[index]
        index = (
            torch.arange(self.num_instances, device="cpu")[index] if isinstance(index, slice) else index.cpu()
        )
        is_missing = self._slot[index] < 0
        if not bool(is_missing.any()):
            return kept[self._slot[index]]
        missing = index[is_missing]
        fresh = self._kernel(missing, slice(None))
        check_shape("kernel(rows, columns)", fresh, len(missing), self.num_instances)
        found = fresh
        if len(missing) < len(index):
            found = fresh.new_empty(len(index), self.num_instances)
            found[is_missing] = fresh
            found[~is_missing] = kept[self._slot[index[~is_missing]]]
        count = min(len(missing), len(kept) - self._used)
        places = torch.arange(self._used, self._used + count, device="cpu")
        kept[places] = fresh[:count]
        self._slot[missing[:count]] = places
        self._used += count
        # If the kept rows are in the original order, reading a slice of rows needs no copy.
        everything = torch.arange(self.num_instances, device="cpu")
        self._is_matrix = self._used == self.num_instances and bool((self._slot == everything).all())
        return found

    def between(
        self, rows: Int[Tensor, " rows"] | slice, columns: Int[Tensor, " columns"] | slice
    ) -> Float[Tensor, "rows columns"]:
        """Return the kernel values of the instances ``rows`` with ``columns``, if possible from memory.

        A slice of rows means that all pairs will be read: if all rows fit into memory, each value is computed
        once and kept.
        """
        kept = self._room()
        if isinstance(rows, slice) and len(kept) == self.num_instances and not self._is_matrix:
            self._keep_all(kept)
        return _between(kept, rows, columns) if self._is_matrix else self._kernel(rows, columns)

    def _room(self) -> Tensor:
        """Return the tensor for kept rows, (capacity, instances)."""
        if self._kept is None:
            one = self._kernel(slice(0, 1), slice(0, 1))
            check_shape("kernel(rows, columns)", one, 1, 1)
            capacity = part_bytes(self._cache_bytes) // (self.num_instances * one.element_size())
            self._kept = one.new_empty(min(capacity, self.num_instances), self.num_instances)
        return self._kept

    def _keep_all(self, kept: Tensor) -> None:
        for first in range(0, self.num_instances, BLOCK):
            rows, columns = slice(first, first + BLOCK), slice(first, None)
            values = self._kernel(rows, columns)
            kept[rows, columns] = values
            kept[columns, rows] = values.mT
        self._slot = torch.arange(self.num_instances, device="cpu")
        self._used, self._is_matrix = self.num_instances, True


def _between(matrix: Tensor, rows: Tensor | slice, columns: Tensor | slice) -> Tensor:
    if isinstance(rows, slice) or isinstance(columns, slice):
        return matrix[rows][:, columns]
    return matrix[rows[:, None], columns]


def asymmetry(matrix: Float[Tensor, "instances instances"]) -> float:
    """Return max |k_ij − k_ji|, computed by blocks: a whole matrix of differences takes ten times as long."""
    largest = 0.0
    for i in range(0, len(matrix), BLOCK):
        for j in range(i, len(matrix), BLOCK):
            upper, lower = matrix[i : i + BLOCK, j : j + BLOCK], matrix[j : j + BLOCK, i : i + BLOCK]
            largest = max(largest, float((upper - lower.mT).abs_().max()))
    return largest
