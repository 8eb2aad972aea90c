"""What calls of estimators do besides their own work: decorators of the methods, and bars of long fits."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from math import inf, isfinite, log
from typing import Any

from lmbm_torch.estimators.common.targets import check_columns
from lmbm_torch.extras import naming_extras

__all__ = ["all_or_nothing", "bar", "of_label_columns", "progress", "watched"]

# Seconds that a call may take without a word.
PATIENCE = 10.0
# Watching a call costs as much as some rows, each of which has its own limit.
WATCHED_ROWS = 16

_log = logging.getLogger("lmbm_torch")
_calls = threading.local()


@contextmanager
def told_if_slow(call: str) -> Iterator[None]:
    """Log a warning if what is done here takes longer than :data:`PATIENCE`; of calls within calls, once.

    A log and no Python warning: it comes from a thread, while the call is at work.
    """
    if getattr(_calls, "is_watched", False):
        yield
        return
    watch = threading.Timer(PATIENCE, _log.warning, ("%s: still at work after %g s", call, PATIENCE))
    watch.daemon = True
    _calls.is_watched = True
    watch.start()
    try:
        yield
    finally:
        watch.cancel()
        _calls.is_watched = False


def watched(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method of an estimator and instances ``X``, of which it is said if many of them take long."""

    @wraps(method)
    def watching(self: Any, X: Any, *arguments: Any, **named: Any) -> Any:
        rows = X.shape[0] if hasattr(X, "shape") and X.shape else len(X) if isinstance(X, list) else 0
        if rows < WATCHED_ROWS:
            return method(self, X, *arguments, **named)
        with told_if_slow(f"{type(self).__name__}.{method.__name__} of {rows} instances"):
            return method(self, X, *arguments, **named)

    return watching


def all_or_nothing(fit: Callable[..., Any]) -> Callable[..., Any]:
    """``fit`` that learns all or nothing: after an exception the estimator is what it was before."""

    @wraps(fit)
    def whole(self, *arguments: Any, **named: Any) -> Any:
        before = dict(vars(self))
        try:
            return fit(self, *arguments, **named)
        except BaseException:
            vars(self).clear()
            vars(self).update(before)
            raise

    return whole


def of_label_columns(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method of an estimator, of instances and labels, whose columns :func:`check_columns` checks."""

    @wraps(method)
    def checking(self: Any, X: Any, *arguments: Any, **named: Any) -> Any:
        for given in (*arguments, *named.values()):
            check_columns(given, getattr(self, "label_names_", None))
        return method(self, X, *arguments, **named)

    return checking


@contextmanager
def bar(name: str, verbose: int) -> Iterator[Callable[[float, str], None] | None]:
    """A bar that is told the share that is done and what to write beside it, or None if none is wanted.

    Args:
        name: in front of the bar.
        verbose: 0 for none.

    Raises:
        ModuleNotFoundError: rich is not installed.
    """
    if not verbose:
        yield None
        return
    with naming_extras():
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[reached]}"),
        TimeElapsedColumn(),
    )
    # Without a thread of its own: the solver's chunks are what there is to show.
    with Progress(*columns, auto_refresh=False) as shown:
        task = shown.add_task(name, total=1.0, reached="")

        def tell(share: float, reached: str) -> None:
            shown.update(task, completed=share, reached=reached, refresh=True)

        yield tell


@contextmanager
def progress(name: str, verbose: int, tol: float) -> Iterator[Callable[[Any], None] | None]:
    """The callback for a solver's states, or None where nothing is to be shown.

    The bar is full where the gap is at most ``tol``, and grows with its logarithm, for most solvers multiply
    it by much the same share in every iteration.

    Args:
        name: see :func:`bar`, also for ``verbose`` and what is raised.
    """
    with bar(name, verbose) as tell:
        if tell is None:
            yield None
            return
        largest, tiny = -inf, sys.float_info.min

        def show(state: Any) -> None:
            nonlocal largest
            gap = max(float(state.gap), tiny)
            if not isfinite(gap):
                return
            largest = max(largest, gap)
            share = 1.0 if gap <= tol else log(largest / gap) / log(largest / tol)
            tell(share, f"gap {gap:.1e} of {tol:.1e}, {state.num_iters} iterations")

        yield show
