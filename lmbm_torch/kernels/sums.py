"""Sums over labellings of chains from probabilities: limits, and a check for terms lost by underflow."""

from __future__ import annotations

from lmbm_torch.kernels.jit import fast_part

# Sums of at least this size are accurate: terms that underflow, below 1e-308, would not change a digit.
LEAST_SUM = 1e-280
# States and transitions whose log-potential is at most this number are forbidden.
MOST_FORBIDDEN = -5e29


@fast_part
def joins(steps, are_reached):
    """Return whether a transition of positive probability comes from a reachable state."""
    found = False
    for r in range(len(steps)):
        found |= steps[r] > 0.0 and are_reached[r]
    return found
