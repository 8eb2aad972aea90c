"""How numba compiles the kernels."""

from __future__ import annotations

from numba import njit

# Sums and products may be reassociated, which vectorises them; infinity and NaN keep their meaning.
SUMS = {"reassoc", "contract", "nsz", "arcp"}

compiled = njit(cache=True, nogil=True, error_model="numpy")
fast = njit(cache=True, nogil=True, fastmath=SUMS, error_model="numpy")
# A call would count references to the arrays that it is given, which takes as long as a node of a search or a
# row of sixty messages.
inlined = njit(inline="always")
