"""Parallel calls by the workers of joblib's active backend, such as Dask.

Without an active backend the calls run in this process.
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
    """Call ``work(common, task, *kept)`` for every task in parallel, and yield the results in order.

    Calls of ``spread`` inside of a task run one after another in the process of the task.

    Args:
        work: a picklable function whose result depends only on the arguments.
        common: an argument of all calls, sent once by Dask and Ray; or the result of :func:`keep`.
        kept: further shared arguments from :func:`keep`.

    Raises:
        OSError: the disk has no space for the arrays that joblib stores for the workers.
    """
    sent, *others = (each if isinstance(each, Kept) else Kept(_SentOnce(each)) for each in (common, *kept))
    if _is_within_a_task():
        yield from (_call(None, work, sent.value, task, *(each.value for each in others)) for task in tasks)
        return
    backend: Any = get_active_backend()[0]
    # Collect the results in a list if the backend, such as Ray's, cannot yield them one by one.
    form = "generator" if backend.supports_return_generator else "list"
    call = delayed(partial(_call, asked()))
    found: Any = Parallel(return_as=form)(
        call(work, sent.value, task, *(each.value for each in others)) for task in tasks
    )
    try:
        yield from found
    except pickle.PicklingError as error:
        # joblib stores large arguments on disk while pickling; only its error's text tells of a full disk.
        if os.strerror(errno.ENOSPC) not in str(error.__cause__):
            raise
        message = f"{os.strerror(errno.ENOSPC)} for joblib's workers; JOBLIB_TEMP_FOLDER sets another folder"
        raise OSError(errno.ENOSPC, message) from error


@dataclass(frozen=True, eq=False)
class Kept:
    """A handle of a value that several calls of :func:`spread` share, made by :func:`keep`."""

    value: Any


def keep(value: Any) -> Kept:
    """Return a handle of a value for several calls of :func:`spread`; Dask sends the value only once."""
    sent = _SentOnce(value)
    client = None if _is_within_a_task() else getattr(get_active_backend()[0], "client", None)
    # With hash=True, Dask would share equal values, and a different call could release the shared value.
    return Kept(sent if client is None else client.scatter(sent, hash=False))


def workers() -> int:
    """Return the number of calls that the active backend runs at once; 1 without a backend or in a task."""
    if _is_within_a_task():
        return 1
    # With None, joblib returns the backend's number of jobs, by default the number of cores.
    return joblib.effective_n_jobs(None)  # pyright: ignore[reportArgumentType]


@dataclass(frozen=True, eq=False)
class _SentOnce:
    """A wrapper of an argument whose ``sys.getsizeof`` includes all arrays inside.

    Dask and Ray send an argument only once if ``sys.getsizeof`` is large. As ``sys.getsizeof`` ignores arrays
    inside of objects, the arrays would be sent with every task without this wrapper.
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
    """Return the memory, in bytes, of an array, a sparse matrix, or a list or dataclass of arrays."""
    if isinstance(value, np.ndarray):
        return value.nbytes
    if sparse.issparse(value):
        return sum(num_bytes(part) for part in vars(value).values())
    if isinstance(value, list | tuple):
        return sum(map(num_bytes, value))
    if is_dataclass(value):
        return sum(num_bytes(getattr(value, part.name)) for part in fields(value))
    return sys.getsizeof(value)
