"""Parameters of which the ordinary run takes a few."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def thorough(values: Iterable[Any], few: int) -> list[Any]:
    """The first ``few`` values, and the others marked as slow."""
    first = list(values)
    return [*first[:few], *(pytest.param(value, marks=pytest.mark.slow) for value in first[few:])]


def slow(*values: Any) -> Any:
    """A case for slow runs alone."""
    return pytest.param(*values, marks=pytest.mark.slow)
