"""Calls spread over whatever joblib backend is active, such as a Dask cluster; here if there is none."""

from __future__ import annotations

import io
import pickle
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from typing import Any, TypeVar

import joblib
import numpy as np
from joblib.parallel import get_active_backend
from scipy import sparse
from sklearn.utils.parallel import Parallel, delayed

from lmbm_torch.memory import asked, memory_budget

try:
    # Comes with Dask, Ray and newer versions of joblib: it takes functions without a name, too.
    from cloudpickle import Pickler
except ImportError:
    from pickle import Pickler

Result = TypeVar("Result")

# Bytes of an array that is not packed with what refers to it.
LARGE = 1000

_here = threading.local()


def spread(work: Callable[..., Result], common: Any, tasks: Iterable[Any], *kept: Kept) -> Iterator[Result]:
    """``work(common, task, *kept)`` of every task, in the tasks' order, wherever joblib's backend says.

    What a task spreads in its turn is done where the task is: its data are there.

    Args:
        work: a function that can be pickled, and whose results depend on nothing but its arguments.
        common: what all calls share: Dask and Ray send it once, not with every task; or what :func:`keep`
            made of it.
        kept: further arguments that later calls of this function share, too.
    """
    sent, *others = (each if isinstance(each, Kept) else Kept(_SentOnce(each)) for each in (common, *kept))
    if _is_within_a_task():
        yield from (_call(None, work, sent.value, task, *(each.value for each in others)) for task in tasks)
        return
    backend: Any = get_active_backend()[0]
    # Ray's gives all results together.
    form = "generator" if backend.supports_return_generator else "list"
    call = delayed(partial(_call, asked()))
    found: Any = Parallel(return_as=form)(
        call(work, sent.value, task, *(each.value for each in others)) for task in tasks
    )
    yield from found


@dataclass(frozen=True, eq=False)
class Kept:
    """What several calls of :func:`spread` share, where the active backend keeps it."""

    value: Any


def keep(value: Any) -> Kept:
    """A Dask cluster is sent the value here, once for all calls that share it."""
    sent = _SentOnce(value)
    client = None if _is_within_a_task() else getattr(get_active_backend()[0], "client", None)
    # By their contents, as is Dask's habit, a call from within a worker may find what another gave up.
    return Kept(sent if client is None else client.scatter(sent, hash=False))


def packed(values: Iterable[Any]) -> tuple[list[bytes], Kept]:
    """The values as :func:`unpacked` takes them, and all their large arrays, each of which is sent once."""
    arrays: list[np.ndarray] = []
    found = []
    for value in values:
        stream = io.BytesIO()
        _Packer(stream, arrays).dump(value)
        found.append(stream.getvalue())
    return found, keep(arrays)


def unpacked(value: bytes, arrays: Sequence[np.ndarray]) -> Any:
    """A value that :func:`packed` has made bytes of in this very program."""
    return _Unpacker(io.BytesIO(value), arrays).load()


class _Packer(Pickler):  # pyright: ignore[reportGeneralTypeIssues]  # one of two
    def __init__(self, stream: io.BytesIO, arrays: list[np.ndarray]) -> None:
        super().__init__(stream)
        self._arrays = arrays

    def persistent_id(self, obj: Any) -> int | None:
        """The place of a large array, None for anything else."""
        if type(obj) is not np.ndarray or obj.nbytes < LARGE:
            return None
        for place, array in enumerate(self._arrays):
            if array is obj:
                return place
        self._arrays.append(obj)
        return len(self._arrays) - 1


class _Unpacker(pickle.Unpickler):
    def __init__(self, stream: io.BytesIO, arrays: Sequence[np.ndarray]) -> None:
        super().__init__(stream)
        self._arrays = arrays

    def persistent_load(self, pid: int) -> np.ndarray:
        return self._arrays[pid]


def workers() -> int:
    """How many calls the active backend makes at once; 1 if there is none, and within one of its tasks."""
    if _is_within_a_task():
        return 1
    # None for as many as the backend has been given: by default all cores count.
    return joblib.effective_n_jobs(None)  # pyright: ignore[reportArgumentType]


@dataclass(frozen=True, eq=False)
class _SentOnce:
    """An argument that all calls share.

    Dask and Ray keep an argument apart if ``sys.getsizeof`` calls it large, which sees no array within
    another object: without this the arrays would be pickled with every task.
    """

    value: Any

    def __sizeof__(self) -> int:
        return object.__sizeof__(self) + num_bytes(self.value)


def _call(
    budget: int | None, work: Callable[..., Result], sent: _SentOnce, task: Any, *kept: _SentOnce
) -> Result:
    before, _here.is_task = _is_within_a_task(), True
    try:
        with nullcontext() if budget is None else memory_budget(budget):
            return work(sent.value, task, *(each.value for each in kept))
    finally:
        _here.is_task = before


def _is_within_a_task() -> bool:
    return getattr(_here, "is_task", False)


def num_bytes(value: Any) -> int:
    """The memory of arrays, sparse matrices, and collections and records of them."""
    if isinstance(value, np.ndarray):
        return value.nbytes
    if sparse.issparse(value):
        return sum(num_bytes(part) for part in vars(value).values())
    if isinstance(value, list | tuple):
        return sum(map(num_bytes, value))
    if is_dataclass(value):
        return sum(num_bytes(getattr(value, part.name)) for part in fields(value))
    return sys.getsizeof(value)
