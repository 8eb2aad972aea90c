"""The memory budget of computations: one setting for all routines with chunks or tables.

    with lmbm_torch.memory_budget("256 MiB"):
        estimator.predict_proba(X)

or ``LMBM_MEMORY=256MiB`` in the environment. Workers of joblib get the same budget. The budget limits each
table; a routine holds a few tables at a time, in addition to input and answer.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = []

VARIABLE = "LMBM_MEMORY"
_UNITS = {"": 1, "b": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30, "kb": 10**3, "mb": 10**6, "gb": 10**9}

_asked: list[int] = []


@contextmanager
def memory_budget(size: int | str) -> Iterator[None]:
    """Limit tables to a size in bytes within the block, in all threads of the process.

    Routines with chunks take smaller chunks, with the same answers except for rounding. Routines with a
    limit of size, such as junction trees, mini-buckets and open nodes of searches, take the budget as the
    limit.

    Args:
        size: in bytes, or with a unit, such as ``"256 MiB"``.

    Raises:
        ValueError: a size below one byte, or a text that is no size.

    Examples:
        >>> import torch
        >>> from lmbm_torch import PairwiseEnergy, decode, memory_budget
        >>> with memory_budget("64 MiB"):
        ...     print(decode(PairwiseEnergy(torch.ones(1, 3), torch.zeros(3, 3))).labels)
        tensor([[1, 1, 1]])
    """
    _asked.append(_bytes("size", size))
    try:
        yield
    finally:
        _asked.pop()


def asked() -> int | None:
    """Return the bytes of the innermost :func:`memory_budget` of the process."""
    return _asked[-1] if _asked else None


def part_bytes(size: int) -> int:
    """Return ``size``, the fastest size of a chunk in bytes, or the budget if smaller."""
    budget = _budget()
    return size if budget is None else min(size, budget)


def limit_bytes(size: int) -> int:
    """Return the budget in bytes, or ``size`` without a budget; beyond the limit a routine gives up."""
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
