"""Enumeration of all labellings of pairwise energies with couplings that all examples share.

The labels are split into a high half and a low half. The terms of couplings within each half, and the effects
of high labels on the fields of low labels, are equal for all examples and computed once. For one example and
one high labelling, a linear function of the low labels remains. Its values for all low labellings are
computed by doubling the number of labellings at each label: two additions and one comparison per labelling,
all vectorised. If some labellings are forbidden, the table of a high labelling excludes forbidden low
labellings, and a high labelling without allowed low labellings is skipped.

If there are so few labels that there is no high half, a matrix product is used instead.
"""

from __future__ import annotations

import numpy as np

from lmbm_torch.kernels.jit import njit, part
from lmbm_torch.kernels.threads import share

# Flags of LLVM that assume finite values, and allow maxima in any order.
MAXIMA = {"reassoc", "contract", "nsz", "nnan", "ninf"}

# Number of labels in the low half, whose 2^8 sums stay in the first-level cache.
LOW_LABELS = 8
EXAMPLES_PER_TASK = 64


def best_numbers(unary, pairwise, allowed=None):
    """Return the labelling of largest score for each example, as binary numbers (batch,).

    Label 0 is the most significant bit. If scores are equal up to rounding, the lowest number wins.

    Args:
        unary: (batch, labels).
        pairwise: (labels, labels), symmetric with a zero diagonal, of the same floating-point dtype.
        allowed: (2^labels,), whether each labelling is allowed; by default, all are allowed.
    """
    batch, labels = unary.shape
    high = max(0, labels - LOW_LABELS)
    high_spins, low_spins = _spins(high, unary.dtype), _spins(labels - high, unary.dtype)
    cross = high_spins @ pairwise[:high, high:]
    within_high = np.einsum("hi,ij,hj->h", high_spins, pairwise[:high, :high], high_spins) / 2
    within_low = np.einsum("li,ij,lj->l", low_spins, pairwise[high:, high:], low_spins) / 2
    highs, table_of, tables = np.arange(len(cross)), np.zeros(len(cross), np.int64), within_low[None]
    if allowed is not None:
        by_high = allowed.reshape(len(high_spins), len(low_spins))
        highs = by_high.any(1).nonzero()[0]
        patterns, table_of = np.unique(by_high[highs], axis=0, return_inverse=True)
        tables = np.where(patterns, within_low, np.finfo(unary.dtype).min / 4)
    shared = highs, cross[highs], within_high[highs], tables, table_of.ravel()
    numbers = np.empty(batch, np.int64)

    def search(start):
        rows = slice(start, start + EXAMPLES_PER_TASK)
        if high:
            _search(unary[rows], *shared, numbers[rows])
        else:
            numbers[rows] = (unary[rows] @ low_spins.T + tables[0]).argmax(1)

    share(range(0, batch, EXAMPLES_PER_TASK), search)
    return numbers


def _spins(labels, dtype):
    """Return all labellings as spins, (2^labels, labels)."""
    bits = np.arange(2**labels)[:, None] >> np.arange(labels - 1, -1, -1) & 1
    return (2 * bits - 1).astype(dtype)


@part
def linear_sums(fields, sums):
    """Write Σ_i fields_i s_i to sums[n], for each labelling n."""
    total = fields[0] * 0
    for field in fields:
        total -= field
    sums[0] = total
    size = 1
    for i in range(len(fields) - 1, -1, -1):
        step = 2 * fields[i]
        lower, upper = sums[:size], sums[size : 2 * size]
        for n in range(size):
            upper[n] = lower[n] + step
        size *= 2


@part(fastmath=MAXIMA)
def largest_sum(sums, table):
    """Return max_n sums[n] + table[n]; ``sums`` is overwritten."""
    half = len(sums) // 2
    if half == 0:
        return sums[0] + table[0]
    # Compare halves elementwise, which is vectorised; a running maximum is not.
    first, second, beside, beyond = sums[:half], sums[half:], table[:half], table[half:]
    for n in range(half):
        one, other = first[n] + beside[n], second[n] + beyond[n]
        first[n] = one if one > other else other
    while half > 1:
        half //= 2
        first, second = sums[:half], sums[half : 2 * half]
        for n in range(half):
            first[n] = first[n] if first[n] > second[n] else second[n]
    return sums[0]


@part
def _low_fields(own, high, added, fields):
    """Compute the fields of the low labels for a labelling of the high labels."""
    for i in range(len(fields)):
        fields[i] = own[high + i] + added[i]


@njit(nogil=True, cache=True)
def _search(unary, highs, cross, within_high, tables, table_of, numbers):
    high = unary.shape[1] - cross.shape[1]
    low_sums, high_sums = np.empty_like(tables[0]), np.empty(1 << high, unary.dtype)
    fields = np.empty_like(cross[0])
    for b in range(len(unary)):
        own = unary[b]
        linear_sums(own[:high], high_sums)
        best, best_high = -np.inf, 0
        for h in range(len(highs)):
            _low_fields(own, high, cross[h], fields)
            linear_sums(fields, low_sums)
            value = high_sums[highs[h]] + within_high[h] + largest_sum(low_sums, tables[table_of[h]])
            if value > best:
                best, best_high = value, h
        _low_fields(own, high, cross[best_high], fields)
        linear_sums(fields, low_sums)
        best_low, table = 0, tables[table_of[best_high]]
        for n in range(len(low_sums)):
            low_sums[n] += table[n]
            if low_sums[n] > low_sums[best_low]:
                best_low = n
        numbers[b] = highs[best_high] * len(low_sums) + best_low
