"""Kernel values between training instances: from a matrix, or evaluated when they are asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from lmbm_torch.checks import check_count, check_finite, check_shape
from lmbm_torch.memory import part_bytes
from lmbm_torch.shapes import Float, Int

Index = Tensor | slice
PairKernel = Callable[[Index, Index], Tensor]
"""Two sets of instances ``(rows,)``, ``(columns,)`` → their kernel values, ``(rows, columns)``."""


class Gram(Protocol):
    """Rows of a symmetric positive semidefinite matrix of kernel values."""

    num_instances: int

    def rows(self, index: Int[Tensor, " rows"] | slice) -> Float[Tensor, "rows instances"]:
        """The kernel values of some instances with all; not to be changed."""
        ...

    def between(
        self, rows: Int[Tensor, " rows"] | slice, columns: Int[Tensor, " columns"] | slice
    ) -> Float[Tensor, "rows columns"]:
        """The kernel values of some instances with some; not to be changed."""
        ...


BLOCK = 256


class PrecomputedGram:
    """A matrix in memory.

    Args:
        matrix: symmetric; the caller answers for its being positive semidefinite.

    Raises:
        ValueError: another shape than (instances, instances), values that are not finite, or not symmetric.
    """

    def __init__(self, matrix: Float[Tensor, "instances instances"]) -> None:
        check_shape("matrix", matrix, len(matrix), len(matrix))
        check_finite("matrix", matrix)
        largest = asymmetry(matrix)
        if largest > 1e-5 * max(float(matrix.max()), -float(matrix.min())):
            raise ValueError(f"matrix: expected a symmetric one, got differences of up to {largest}")
        self.matrix = matrix
        self.num_instances = len(matrix)

    def rows(self, index: Int[Tensor, " rows"] | slice) -> Float[Tensor, "rows instances"]:
        return self.matrix[index]

    def between(
        self, rows: Int[Tensor, " rows"] | slice, columns: Int[Tensor, " columns"] | slice
    ) -> Float[Tensor, "rows columns"]:
        return _between(self.matrix, rows, columns)


class CachedGram:
    """Rows from a function; the first ones that are asked for are kept, as many as fit.

    Solvers visit all instances in turn, so that the row used last is the one not needed for longest: a row
    that is kept never makes way for another. Where all rows fit, a solver that reads all pairs fills them.

    Args:
        kernel: evaluates pairs.
        num_instances: N.
        cache_bytes: the most memory of the rows that are kept; one block of rows comes on top.

    Attributes:
        single: (instances, instances), all values in single precision, where a solver has kept them here for
            the next one; not to be changed.

    Raises:
        ValueError: ``num_instances`` below one.
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
        """The kernel values of some instances with all, remembered where they are."""
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
        # Kept in their own order, rows that are asked for by a slice need not be copied.
        everything = torch.arange(self.num_instances, device="cpu")
        self._is_matrix = self._used == self.num_instances and bool((self._slot == everything).all())
        return found

    def between(
        self, rows: Int[Tensor, " rows"] | slice, columns: Int[Tensor, " columns"] | slice
    ) -> Float[Tensor, "rows columns"]:
        """The kernel values of some instances with some, remembered where all are.

        Slices of rows are asked for to read all pairs: where these fit they are kept, each evaluated once.
        """
        kept = self._room()
        if isinstance(rows, slice) and len(kept) == self.num_instances and not self._is_matrix:
            self._keep_all(kept)
        return _between(kept, rows, columns) if self._is_matrix else self._kernel(rows, columns)

    def _room(self) -> Tensor:
        """Where rows are kept, (capacity, instances)."""
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
    """max |k_ij − k_ji|, block by block: whole matrices of differences take ten times as long."""
    largest = 0.0
    for i in range(0, len(matrix), BLOCK):
        for j in range(i, len(matrix), BLOCK):
            upper, lower = matrix[i : i + BLOCK, j : j + BLOCK], matrix[j : j + BLOCK, i : i + BLOCK]
            largest = max(largest, float((upper - lower.mT).abs_().max()))
    return largest
