"""Decorators of the estimators' methods, and progress bars of long fits."""

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

# Seconds that a call may take before a warning is logged.
PATIENCE = 10.0
# Least number of rows of a watched call; watching costs as much CPU time as predictions of some rows.
WATCHED_ROWS = 16

_log = logging.getLogger("lmbm_torch")
_calls = threading.local()


def fit_call(fit: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``fit``: a slow call is logged, and after an exception the estimator is unchanged."""

    @wraps(fit)
    def fitting(self: Any, X: Any, *arguments: Any, **named: Any) -> Any:
        before = dict(vars(self))
        try:
            return _watched(fit, self, X, arguments, named)
        except BaseException:
            vars(self).clear()
            vars(self).update(before)
            raise

    return fitting


def answer_call(method: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a method of instances: a slow call is logged, and columns of labels are checked.

    Data frames of labels must have the columns of ``fit``, see :func:`check_columns`.
    """

    @wraps(method)
    def answering(self: Any, X: Any, *arguments: Any, **named: Any) -> Any:
        for given in (*arguments, *named.values()):
            check_columns(given, getattr(self, "label_names_", None))
        return _watched(method, self, X, arguments, named)

    return answering


def _watched(
    method: Callable[..., Any], self: Any, X: Any, arguments: tuple[Any, ...], named: dict[str, Any]
) -> Any:
    """Call a method; log a warning after :data:`PATIENCE` seconds, once for calls within calls.

    The warning is a log, not a Python warning, because a second thread writes the message during the call.
    """
    rows = X.shape[0] if hasattr(X, "shape") and X.shape else len(X) if isinstance(X, list) else 0
    if rows < WATCHED_ROWS or getattr(_calls, "is_watched", False):
        return method(self, X, *arguments, **named)
    call = f"{type(self).__name__}.{method.__name__} of {rows} instances"
    watch = threading.Timer(PATIENCE, _log.warning, ("%s: still at work after %g s", call, PATIENCE))
    watch.daemon = True
    _calls.is_watched = True
    watch.start()
    try:
        return method(self, X, *arguments, **named)
    finally:
        watch.cancel()
        _calls.is_watched = False


@contextmanager
def bar(name: str, verbose: int) -> Iterator[Callable[[float, str], None] | None]:
    """Show a progress bar, updated by the yielded function of a share and a text.

    Args:
        name: text before the bar.
        verbose: 0 for no bar; then None is yielded.

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
    # No refreshing thread: only the solver's callbacks bring news.
    with Progress(*columns, auto_refresh=False) as shown:
        task = shown.add_task(name, total=1.0, reached="")

        def tell(share: float, reached: str) -> None:
            shown.update(task, completed=share, reached=reached, refresh=True)

        yield tell


@contextmanager
def progress(name: str, verbose: int, tol: float) -> Iterator[Callable[[Any], None] | None]:
    """Show a bar of a solver's duality gap, updated by the yielded callback of states.

    The bar is full at a gap of ``tol`` and grows with the logarithm of the gap, because most solvers shrink
    the gap by about the same factor in every iteration.

    Args:
        name, verbose: see :func:`bar`; without a bar None is yielded.

    Raises:
        ModuleNotFoundError: rich is not installed.
    """
    if not verbose:
        yield None
        return
    with bar(name, verbose) as tell:
        assert tell is not None
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
