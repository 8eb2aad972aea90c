"""Arrays for kernels: placed as vector registers like them, and where possible in memory used before."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import DTypeLike

# A line of the cache, and the widest register.
LINE = 64

# Larger arrays, and more than so many of a size, are given back to the system.
_KEPT_BYTES = 2**22
_MOST_KEPT = 8

_spare: defaultdict[int, list[np.ndarray]] = defaultdict(list)


def empty(shape: tuple[int, ...], dtype: DTypeLike) -> np.ndarray:
    """An unset array whose first entry begins a line: registers across two lines cost up to twice as much."""
    count, dtype = math.prod(shape), np.dtype(dtype)
    memory = np.empty(count + LINE // dtype.itemsize, dtype)
    start = -memory.__array_interface__["data"][0] % LINE // dtype.itemsize
    return memory[start : start + count].reshape(shape)


@contextmanager
def borrowed(shape: tuple[int, ...], dtype: DTypeLike) -> Iterator[np.ndarray]:
    """An array as of :func:`empty` that nobody may use afterwards.

    Up to some megabytes its memory is kept for whoever borrows next. What the system gives anew it must first
    clear page by page: for a model of 1000 x 500 that took longer than ten iterations.
    """
    needed = math.prod(shape) * np.dtype(dtype).itemsize
    size = 1 << max(needed - 1, 0).bit_length()
    spare = _spare[size]
    # No look before the leap: another thread may be quicker.
    try:
        memory = spare.pop()
    except IndexError:
        memory = empty((size,), np.uint8)
    try:
        yield memory[:needed].view(dtype).reshape(shape)
    finally:
        if size <= _KEPT_BYTES and len(spare) < _MOST_KEPT:
            spare.append(memory)
