"""Seeded random numbers for compiled code.

The state is explicit: numba's global generator is shared with the caller, and differs between threads.
"""

from __future__ import annotations

import numpy as np

from lmbm_torch.kernels.jit import njit


@njit(cache=True)
def random_state(seed):
    """Return a state for :func:`next_random`."""
    state = np.empty(1, np.uint64)
    state[0] = np.uint64(seed) * np.uint64(2654435769) + np.uint64(1)
    for _ in range(8):
        next_random(state)
    return state


@njit(cache=True)
def next_random(state):
    """Return 64 random bits, and update the state (xorshift64*), an array of one non-zero element."""
    x = state[0]
    x ^= x >> np.uint64(12)
    x ^= x << np.uint64(25)
    x ^= x >> np.uint64(27)
    state[0] = x
    return x * np.uint64(2685821657736338717)


@njit(cache=True)
def shuffle(entries, count, state):
    """Shuffle the first ``count`` entries in place (Fisher–Yates)."""
    for a in range(count - 1, 0, -1):
        b = np.int64((next_random(state) >> np.uint64(11)) % np.uint64(a + 1))
        entries[a], entries[b] = entries[b], entries[a]
