"""Calls spread over the workers of joblib's active backend, such as Dask.

Without an active backend the calls run in the process.
"""

from __future__ import annotations

import errno
import os
import pickle
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
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

Result = TypeVar("Result")

_here = threading.local()


def spread(work: Callable[..., Result], common: Any, tasks: Iterable[Any], *kept: Kept) -> Iterator[Result]:
    """Yield ``work(common, task, *kept)`` for every task, in order, computed by joblib's workers.

    Calls of ``spread`` inside of a task run in the process of the task, where the data is.

    Args:
        work: a picklable function whose result depends only on the arguments.
        common: an argument of all calls, which Dask and Ray send once; or the result of :func:`keep`.
        kept: further shared arguments from :func:`keep`.

    Raises:
        OSError: the disk has no space for the arrays that joblib stores for the workers.
    """
    sent, *others = (each if isinstance(each, Kept) else Kept(_SentOnce(each)) for each in (common, *kept))
    if _is_within_a_task():
        yield from (_call(None, work, sent.value, task, *(each.value for each in others)) for task in tasks)
        return
    backend: Any = get_active_backend()[0]
    # Ray's backend cannot yield results one by one, and returns a list.
    form = "generator" if backend.supports_return_generator else "list"
    call = delayed(partial(_call, asked()))
    found: Any = Parallel(return_as=form)(
        call(work, sent.value, task, *(each.value for each in others)) for task in tasks
    )
    try:
        yield from found
    except pickle.PicklingError as error:
        # joblib stores large arguments while pickling a task; only the text of its error tells a full disk.
        if os.strerror(errno.ENOSPC) not in str(error.__cause__):
            raise
        message = f"{os.strerror(errno.ENOSPC)} for joblib's workers; JOBLIB_TEMP_FOLDER sets another folder"
        raise OSError(errno.ENOSPC, message) from error


@dataclass(frozen=True, eq=False)
class Kept:
    """A value shared by several calls of :func:`spread`, stored by the active backend."""

    value: Any


def keep(value: Any) -> Kept:
    """Send a value to the workers of a Dask cluster once, for all calls of :func:`spread` that share it."""
    sent = _SentOnce(value)
    client = None if _is_within_a_task() else getattr(get_active_backend()[0], "client", None)
    # hash=False: by default Dask shares equal values, and another call could release the shared value.
    return Kept(sent if client is None else client.scatter(sent, hash=False))


def workers() -> int:
    """Return the number of calls that the active backend runs at once; 1 without a backend or in a task."""
    if _is_within_a_task():
        return 1
    # None stands for the backend's number of jobs, by default the number of cores.
    return joblib.effective_n_jobs(None)  # pyright: ignore[reportArgumentType]


@dataclass(frozen=True, eq=False)
class _SentOnce:
    """An argument shared by all calls, with the true size.

    Dask and Ray send an argument only once if ``sys.getsizeof`` is large. ``sys.getsizeof`` ignores arrays
    inside other objects, so without the class the arrays would be sent with every task.
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
    """Return the bytes of a value: an array, a sparse matrix, or a collection or record of arrays."""
    if isinstance(value, np.ndarray):
        return value.nbytes
    if sparse.issparse(value):
        return sum(num_bytes(part) for part in vars(value).values())
    if isinstance(value, list | tuple):
        return sum(map(num_bytes, value))
    if is_dataclass(value):
        return sum(num_bytes(getattr(value, part.name)) for part in fields(value))
    return sys.getsizeof(value)
