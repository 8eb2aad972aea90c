"""Pairs of literals excluded by several rules together: both literals cannot be true."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product

import numpy as np

__all__ = []

# A literal: the index of a label, and the label's value that makes the literal true.
Literal = tuple[int, int]
# The search for pairs ends above this number: long chains of implications would give too many pairs.
MOST_PAIRS = 100_000


def implied_pairs(matrix: np.ndarray, bounds: np.ndarray) -> list[tuple[Literal, Literal]]:
    """Return the pairs of literals excluded by several rules together, sorted by the number of rules.

    Args:
        matrix, bounds: rules matrix @ y ≤ bounds over y in {0, 1}.
    """
    implied = _implications(matrix, bounds)
    distance: dict[tuple[Literal, Literal], int] = {}
    for literal in implied:
        for other, steps in _reached(literal, implied).items():
            if steps > 1 and other[0] != literal[0]:
                first, second = sorted((literal, _opposite(other)))
                distance[first, second] = min(steps, distance.get((first, second), steps))
        if len(distance) > MOST_PAIRS:
            break
    return sorted(distance, key=lambda pair: distance[pair])


def _opposite(literal: Literal) -> Literal:
    return literal[0], 1 - literal[1]


def _implications(matrix: np.ndarray, bounds: np.ndarray) -> dict[Literal, set[Literal]]:
    """Return for each literal the literals that follow by a single rule of two labels."""
    found: dict[Literal, set[Literal]] = {}
    for row in ((matrix != 0).sum(1) == 2).nonzero()[0]:
        labels = matrix[row].nonzero()[0].tolist()
        for values in product((0, 1), repeat=2):
            if matrix[row, labels] @ values > bounds[row]:
                one, other = zip(labels, values, strict=True)
                found.setdefault(one, set()).add(_opposite(other))
                found.setdefault(other, set()).add(_opposite(one))
    return found


def _reached(start: Literal, implied: dict[Literal, set[Literal]]) -> dict[Literal, int]:
    """Return all literals that follow from ``start``, each with the smallest number of rules used."""
    steps, ahead = {start: 0}, [start]
    for literal in ahead:
        following: Iterable[Literal] = implied.get(literal, ())
        for other in following:
            if other not in steps:
                steps[other] = steps[literal] + 1
                ahead.append(other)
    return steps
