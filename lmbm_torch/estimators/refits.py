"""Fits that learn all or nothing."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any


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
