"""The limits of the compiled sums over one side of a restricted Boltzmann machine.

Separate from the kernel: importing numba takes as long as a small machine's whole computation.
"""

from __future__ import annotations

from torch import Tensor

# Largest |field|: the product of the odds of two units neither overflows nor underflows in float64.
_MOST_FIELD = 300.0

# Units multiplied along a vector.
TILE = 64


def most_field(hidden: Tensor, coupling: Tensor) -> float:
    """Return an upper bound on |hidden + labelsᵀ coupling|."""
    return float((hidden.detach().abs() + coupling.detach().abs().sum(0)).max())


def suits(hidden: Tensor, coupling: Tensor) -> bool:
    """Return whether the units fill vectors, and no labelling gives fields with an overflow of odds."""
    return hidden.shape[1] >= TILE and most_field(hidden, coupling) <= _MOST_FIELD
