"""Kernel values between training instances: from a matrix, or evaluated when they are asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from lmbm_torch.checks import check_count, check_finite, check_shape
from lmbm_torch.memory import part_bytes
from lmbm_torch.shapes import Float, Int

RowKernel = Callable[[Tensor], Tensor]
"""Rows of instances ``(rows,)`` → their kernel values with all instances, ``(rows, instances)``."""


class Gram(Protocol):
    """Rows of a symmetric positive semidefinite matrix of kernel values."""

    num_instances: int

    def rows(self, index: Int[Tensor, " rows"] | slice) -> Float[Tensor, "rows instances"]:
        """The kernel values of some instances with all; not to be changed."""
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
        largest = _asymmetry(matrix)
        if largest > 1e-5 * max(float(matrix.max()), -float(matrix.min())):
            raise ValueError(f"matrix: expected a symmetric one, got differences of up to {largest}")
        self.matrix = matrix
        self.num_instances = len(matrix)

    def rows(self, index: Int[Tensor, " rows"] | slice) -> Float[Tensor, "rows instances"]:
        return self.matrix[index]


class CachedGram:
    """Rows from a function; the first ones that are asked for are kept, as many as fit.

    Solvers visit all instances in turn, so that the row used last is the one not needed for longest: a row
    that is kept never makes way for another.

    Args:
        kernel: evaluates rows.
        num_instances: N.
        cache_bytes: the most memory of the rows that are kept; one block of rows comes on top.

    Raises:
        ValueError: ``num_instances`` below one.
    """

    def __init__(self, kernel: RowKernel, num_instances: int, cache_bytes: int = 2**29) -> None:
        check_count("num_instances", num_instances)
        self.num_instances = num_instances
        self._kernel = kernel
        self._cache_bytes = cache_bytes
        self._kept: Tensor | None = None
        self._slot = torch.full((num_instances,), -1)
        self._used = 0
        self._is_matrix = False

    def rows(self, index: Int[Tensor, " rows"] | slice) -> Float[Tensor, "rows instances"]:
        """The kernel values of some instances with all, remembered where they are."""
        if self._is_matrix and self._kept is not None:
            return self._kept[index]
        index = torch.arange(self.num_instances)[index] if isinstance(index, slice) else index.cpu()
        is_missing = self._slot[index] < 0
        if self._kept is not None and not bool(is_missing.any()):
            return self._kept[self._slot[index]]
        missing = index[is_missing]
        fresh = self._kernel(missing)
        check_shape("kernel(rows)", fresh, len(missing), self.num_instances)
        if self._kept is None:
            capacity = min(part_bytes(self._cache_bytes) // fresh[0].nbytes, self.num_instances)
            self._kept = fresh.new_empty(capacity, self.num_instances)
        found = fresh.new_empty(len(index), self.num_instances)
        found[is_missing] = fresh
        found[~is_missing] = self._kept[self._slot[index[~is_missing]]]
        count = min(len(missing), len(self._kept) - self._used)
        places = torch.arange(self._used, self._used + count)
        self._kept[places] = fresh[:count]
        self._slot[missing[:count]] = places
        self._used += count
        # Kept in their own order, rows that are asked for by a slice need not be copied.
        everything = torch.arange(self.num_instances)
        self._is_matrix = self._used == self.num_instances and bool((self._slot == everything).all())
        return found


def _asymmetry(matrix: Float[Tensor, "instances instances"]) -> float:
    """max |k_ij − k_ji|, block by block: whole matrices of differences take ten times as long."""
    largest = 0.0
    for i in range(0, len(matrix), BLOCK):
        for j in range(i, len(matrix), BLOCK):
            upper, lower = matrix[i : i + BLOCK, j : j + BLOCK], matrix[j : j + BLOCK, i : i + BLOCK]
            largest = max(largest, float((upper - lower.mT).abs_().max()))
    return largest
