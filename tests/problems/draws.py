"""Draws held to the distribution that they should be from."""

from __future__ import annotations

from torch import Tensor

# Labellings that are expected less often are too rare to be compared each.
RARE = 5


def deviation(drawn: Tensor, labellings: Tensor, probabilities: Tensor) -> float:
    """By how many of its standard deviations Pearson's statistic is off; fails for an impossible labelling.

    Args:
        drawn: (samples, labels).
        labellings: (labellings, labels), all different.
        probabilities: (labellings,).
    """
    matches = (drawn[:, None] == labellings).all(-1) & (probabilities > 0)
    assert (matches.sum(1) == 1).all()
    expected = len(drawn) * probabilities
    common = expected >= RARE
    counts, expected = matches.sum(0)[common], expected[common]
    statistic = ((counts - expected) ** 2 / expected).sum()
    degrees = max(1, len(counts) - 1)
    return float(statistic - degrees) / (2 * degrees) ** 0.5
