"""Arrays for kernels: aligned for vector registers, and where possible in memory that was used before."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import DTypeLike

# Bytes of a cache line, and of the widest register.
LINE = 64

# Larger arrays, and those beyond so many of a size, are given back to the system.
_KEPT_BYTES = 2**22
_MOST_KEPT = 8

_spare: defaultdict[int, list[np.ndarray]] = defaultdict(list)


def empty(shape: tuple[int, ...], dtype: DTypeLike) -> np.ndarray:
    """An uninitialised array that begins at a cache line: loads across two lines take up to twice as long."""
    count, dtype = math.prod(shape), np.dtype(dtype)
    memory = np.empty(count + LINE // dtype.itemsize, dtype)
    start = -memory.__array_interface__["data"][0] % LINE // dtype.itemsize
    return memory[start : start + count].reshape(shape)


@contextmanager
def borrowed(shape: tuple[int, ...], dtype: DTypeLike) -> Iterator[np.ndarray]:
    """An array like that of :func:`empty`, not to be used after the ``with`` block.

    Up to some megabytes its memory is kept for the next borrower. The system clears new memory page by page,
    which for a model of 1000 x 500 took longer than ten iterations.
    """
    needed = math.prod(shape) * np.dtype(dtype).itemsize
    size = 1 << max(needed - 1, 0).bit_length()
    spare = _spare[size]
    # Not looked up first: another thread may take the last one in between.
    try:
        memory = spare.pop()
    except IndexError:
        memory = empty((size,), np.uint8)
    try:
        yield memory[:needed].view(dtype).reshape(shape)
    finally:
        if size <= _KEPT_BYTES and len(spare) < _MOST_KEPT:
            spare.append(memory)
