"""The memory budget of computations: a setting for all routines with chunks or tables.

    with lmbm_torch.memory_budget("256 MiB"):
        estimator.predict_proba(X)

The environment variable ``LMBM_MEMORY=256MiB`` has the same effect. Workers of joblib get the same budget.
The budget limits each table; a routine holds a few tables at a time, in addition to input and result.
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
    """Limit the size of tables in bytes during the block, in all threads of the process.

    Routines that compute in chunks take smaller chunks; results differ only by round-off. Junction trees,
    mini-buckets and tree searches give up at a limit: for these routines the budget is the limit.

    Args:
        size: number of bytes, or a text with a unit, such as ``"256 MiB"``.

    Raises:
        ValueError: the size is below one byte, or the text is not a size.

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
    """Return the bytes of the innermost open :func:`memory_budget`, or None without a budget."""
    return _asked[-1] if _asked else None


def part_bytes(size: int) -> int:
    """Return the size of a chunk in bytes: ``size``, or the memory budget if the budget is smaller."""
    budget = _budget()
    return size if budget is None else min(size, budget)


def limit_bytes(size: int) -> int:
    """Return the bytes at which a routine gives up: the budget, or ``size`` if there is no budget."""
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
        raise ValueError(f"{name}: expected a number of bytes, or a text such as '256 MiB', got {size!r}")
    return found
