"""Decorators of the methods of estimators: what each call does besides its own work."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

from lmbm_torch.estimators.targets import check_columns

__all__ = ["all_or_nothing", "of_label_columns", "told_if_slow", "watched"]

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
