"""Which restricted Boltzmann machines the compiled sums over one side can take.

To ask takes no kernel: importing numba lasts as long as all that a small machine needs.
"""

from __future__ import annotations

from torch import Tensor

# Odds of two units multiply to a normal number of float64.
_MOST_FIELD = 300.0

TILE = 64
"""Units that are multiplied along a vector."""


def most_field(hidden: Tensor, coupling: Tensor) -> float:
    """The largest |hidden + labelsᵀ coupling|, or more."""
    return float((hidden.detach().abs() + coupling.detach().abs().sum(0)).max())


def suits(hidden: Tensor, coupling: Tensor) -> bool:
    """Whether the units fill vectors, and no labelling gives fields whose odds could overflow."""
    return hidden.shape[1] >= TILE and most_field(hidden, coupling) <= _MOST_FIELD
