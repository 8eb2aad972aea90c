"""How much memory a computation may take: one setting for all routines that work in parts or keep tables.

    with lmbm_torch.memory_budget("256 MiB"):
        estimator.predict_proba(X)

or ``LMBM_MEMORY=256MiB`` in the environment. What joblib's workers are given takes the budget along. Each of
these tables is then at most so large, and a routine holds a few of them at a time, beside its input and its
answer.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["asked", "limit_bytes", "memory_budget", "part_bytes"]

VARIABLE = "LMBM_MEMORY"
_UNITS = {"": 1, "b": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30, "kb": 10**3, "mb": 10**6, "gb": 10**9}

_asked: list[int] = []


@contextmanager
def memory_budget(size: int | str) -> Iterator[None]:
    """Within it, tables of at most so many bytes, in all threads of this process.

    What works in parts takes smaller ones, with the same answers but for rounding. What has a limit, beyond
    which it refuses a problem or ends with what is proven so far (junction trees, mini-buckets, open nodes of
    searches), has this one instead, whether smaller or larger.

    Args:
        size: in bytes, or with a unit, such as ``"256 MiB"``.

    Raises:
        ValueError: a size below one byte, or a text that is none.
    """
    _asked.append(_bytes("size", size))
    try:
        yield
    finally:
        _asked.pop()


def asked() -> int | None:
    """The bytes of this process's innermost :func:`memory_budget`, which no other process knows of."""
    return _asked[-1] if _asked else None


def part_bytes(size: int) -> int:
    """The bytes of a part that is fastest at ``size``: no more than the budget."""
    budget = _budget()
    return size if budget is None else min(size, budget)


def limit_bytes(size: int) -> int:
    """The bytes beyond which a routine gives up: the budget, and ``size`` where none is set."""
    budget = _budget()
    return size if budget is None else budget


def _budget() -> int | None:
    if _asked:
        return asked()
    text = os.environ.get(VARIABLE)
    return _bytes(VARIABLE, text) if text else None


def _bytes(name: str, size: int | str) -> int:
    number, unit = size, ""
    if isinstance(size, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmg]i?b|b?)\s*", size, re.IGNORECASE)
        number, unit = (float(match[1]), match[2].lower()) if match else (0, "")
    is_number = isinstance(number, int | float) and not isinstance(number, bool) and math.isfinite(number)
    found = int(number * _UNITS[unit]) if is_number else 0
    if found < 1:
        raise ValueError(f"{name}: expected bytes, at least 1, or a text such as '256 MiB', got {size!r}")
    return found
