"""Records and memory of belief propagation on restricted Boltzmann machines, compiled for the CPU."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
from numpy.typing import DTypeLike


class Model(NamedTuple):
    """The model and the settings shared by all instances."""

    weight: np.ndarray  # (hidden, columns), in odds or log-odds
    in_odds: bool
    maximise: bool  # whether messages of both sides are max-product
    decide: bool  # the visible units
    most_odds: float  # largest odds of visible units, used for certain units
    damping: float
    rows_at_a_time: int
    rows_per_flush: int  # a multiple of the previous number
    num_iters: int
    tol: float
    warm: bool
    silent: bool  # whether the first iteration ignores visible units


class Instances(NamedTuple):
    """Inputs and outputs of each instance; float64 unless another type is given."""

    visible: np.ndarray  # (batch, columns)
    hidden: np.ndarray  # (batch, hidden)
    init: np.ndarray  # (batch, or 0 if not given, hidden) log-odds for the first messages
    known: np.ndarray  # (batch or 1, columns)
    messages: np.ndarray  # (batch, or 0 if not requested, hidden, columns) of the weights' type
    to_hidden: np.ndarray  # (batch, hidden or 0, columns) of the weights' type
    pair_weights: np.ndarray  # (batch,) of the weights' type
    visible_out: np.ndarray  # (batch, visible) log-odds
    hidden_out: np.ndarray  # (batch, hidden) log-odds
    log_partition: np.ndarray  # (batch,)
    num_iters: np.ndarray  # (batch,) int64
    residual: np.ndarray  # (batch,)
    stop: np.ndarray  # (1,) bool: if it becomes true, the work ends early


class Units(NamedTuple):
    """The beliefs of one side; the log-odds are log(mantissa) + power · (log 2 in odds, 1 in log-odds)."""

    bias_mantissa: np.ndarray
    bias_power: np.ndarray
    mantissa: np.ndarray
    power: np.ndarray
    own: np.ndarray  # in odds, type of weights: odds of a visible unit, or probability of a hidden unit
    rest: np.ndarray  # in odds, type of weights: 1 − probability, with full precision
    field: np.ndarray  # in log-odds: the log-odds of the units


class State(NamedTuple):
    """Working memory for one instance."""

    visible: Units
    hidden: Units
    known: np.ndarray  # (columns,)
    row_value: np.ndarray  # (hidden,) each row's part of the log partition
    product: np.ndarray  # (parts, columns) in odds, type of weights: products of messages since a flush
    total: np.ndarray  # (parts, columns) exponents of products; in log-odds: sums of messages
    change: np.ndarray  # (parts, columns)


def new_state(model: Model, parts: int) -> State:
    """Allocate memory for an instance with rows in ``parts`` parts.

    Python allocates the memory, because returning a tuple from numba's cached code has crashed.
    """
    rows, columns = model.weight.shape
    kind = model.weight.dtype
    return State(
        visible=_new_units(columns, kind),
        hidden=_new_units(rows, kind),
        known=np.empty(columns),
        row_value=np.empty(rows),
        product=empty((parts, columns), kind),
        total=np.empty((parts, columns)),
        change=empty((parts, columns), kind),
    )


def _new_units(count: int, kind: np.dtype) -> Units:
    beliefs = (np.empty(count) for _ in range(4))
    return Units._make((*beliefs, empty((count,), kind), empty((count,), kind), np.empty(count)))


# Bytes of a cache line, and of the widest vector register.
LINE = 64

# Larger arrays are returned to the system, as are arrays beyond the number below of each size.
_KEPT_BYTES = 2**22
_MOST_KEPT = 8

_spare: defaultdict[int, list[np.ndarray]] = defaultdict(list)


def empty(shape: tuple[int, ...], dtype: DTypeLike) -> np.ndarray:
    """Allocate an uninitialised array that is aligned to cache lines.

    Loads that cross a cache line take up to twice as long.
    """
    count, dtype = math.prod(shape), np.dtype(dtype)
    memory = np.empty(count + LINE // dtype.itemsize, dtype)
    start = -memory.__array_interface__["data"][0] % LINE // dtype.itemsize
    return memory[start : start + count].reshape(shape)


@contextmanager
def borrowed(shape: tuple[int, ...], dtype: DTypeLike) -> Iterator[np.ndarray]:
    """Yield an array as from :func:`empty`, to be used only inside the ``with`` block.

    Memory of up to some megabytes is kept for the next call, because the system clears new memory, which for
    a model of 1000 x 500 units took longer than ten iterations.
    """
    needed = math.prod(shape) * np.dtype(dtype).itemsize
    size = 1 << max(needed - 1, 0).bit_length()
    spare = _spare[size]
    # Pop without a test for an empty list, because another thread may take the last array after the test.
    try:
        memory = spare.pop()
    except IndexError:
        memory = empty((size,), np.uint8)
    try:
        yield memory[:needed].view(dtype).reshape(shape)
    finally:
        if size <= _KEPT_BYTES and len(spare) < _MOST_KEPT:
            spare.append(memory)
