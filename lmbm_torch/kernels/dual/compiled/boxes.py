"""The values of a label's box, compiled; see :mod:`lmbm_torch.kernels.dual.plain.boxes`.

Loops write one array each, and maxima are sought apart: LLVM then vectorises all of them, ten times faster
here.
"""

from __future__ import annotations

from lmbm_torch.kernels.jit import njit, part

# No value here is infinite or NaN: kernel values are checked, curvatures kept above zero.
FAST = {"reassoc", "contract", "nsz", "arcp", "nnan", "ninf"}
BLOCK = 64

fast = njit(cache=True, nogil=True, fastmath=FAST, error_model="numpy")
fast_part = part(fastmath=FAST, error_model="numpy")


@fast_part
def gap(box, shares):
    """The duality gap, Σ_i of ``shares``, max_b h_i (β_i − b) over the box."""
    coef, lower, upper, gradient, _linear = box
    for i in range(len(shares)):
        value = gradient[i]
        shares[i] = value * (coef[i] - (lower[i] if value > 0 else upper[i]))
    total = 0.0
    for i in range(len(shares)):
        total += shares[i]
    return total


@fast_part
def dual(box):
    """½ βᵀ(linear − h) = linearᵀβ − ½ βᵀGβ."""
    total = 0.0
    for i in range(len(box.coef)):
        total += box.coef[i] * (box.linear[i] - box.gradient[i])
    return 0.5 * total


@fast_part
def padded(size):
    """The least number of values, no less than ``size``, of which :func:`largest` can be asked."""
    return (size + BLOCK - 1) // BLOCK * BLOCK


@fast_part
def largest(values):
    """The first position of the largest value; their number is a multiple of a block's.

    The largest of each block first, which LLVM vectorises, and no value's position: a third of the time.
    """
    best, first = values[0], 0
    for start in range(0, len(values), BLOCK):
        block = values[start : start + BLOCK]
        most = block[0]
        for k in range(BLOCK):
            most = max(most, block[k])
        if most > best:
            best, first = most, start
    for place in range(first, first + BLOCK):
        if values[place] == best:
            return place
    return first
