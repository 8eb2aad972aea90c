"""Sums over labellings of chains by probabilities: limits, and a check for terms lost to underflow."""

from __future__ import annotations

from lmbm_torch.kernels.jit import fast_part

# Least sum of probabilities that has lost nothing: what underflows, below 1e-308, is below the last digit.
LEAST_SUM = 1e-280
# Log-potentials at most this are forbidden.
MOST_FORBIDDEN = -5e29


@fast_part
def joins(steps, are_reached):
    """Return whether a step of positive probability comes from a reached state."""
    found = False
    for r in range(len(steps)):
        found |= steps[r] > 0.0 and are_reached[r]
    return found
