"""Exact marginals of directed models by a depth-first walk through prefixes of labellings.

A prefix decides the first labels of the ordering. Its probability is the product of conditional
probabilities, and the probabilities of all continuations sum to 1. Therefore P(label = 1) is the sum, over
all prefixes of the earlier labels, of the probability of the prefix times the conditional probability of the
label. A known label has only one branch. The continuations of a prefix up to the last known label sum to the
probability of the known values.
"""

from __future__ import annotations

import numpy as np

from lmbm_torch.kernels.jit import njit, part
from lmbm_torch.kernels.threads import share

# Largest total probability of the prefixes that are left out.
NEGLIGIBLE = 2.0**-50
EXAMPLES_PER_TASK = 16
# If the known values are less probable than this, the sum is repeated with fewer prefixes left out.
IMPROBABLE = 1e-3


def marginals(unary, parents, known):
    """Return P(label = 1, known), (batch, labels), and P(known), (batch,).

    Results are too small by at most ``NEGLIGIBLE``, for improbable known values times P(known).

    Args:
        unary: (batch, labels), in the order of the model, float64.
        parents: (labels, labels) or (batch, labels, labels), row i the weights of the labels before label i.
        known: (batch, labels), −1 for a free label.
    """
    batch, labels = unary.shape
    # Transpose, so that the effects of a label on later fields are contiguous.
    added = np.ascontiguousarray(np.swapaxes(parents if parents.ndim == 3 else parents[None], 1, 2))
    ones, total = np.zeros((batch, labels)), np.ones(batch)

    def sum_up(start):
        rows = slice(start, start + EXAMPLES_PER_TASK)
        some = added if len(added) == 1 else added[rows]
        _sum_up(unary[rows], some, known[rows], NEGLIGIBLE / 2**labels, ones[rows], total[rows])

    share(range(0, batch, EXAMPLES_PER_TASK), sum_up)
    return ones, total


@njit(nogil=True, cache=True)
def _sum_up(unary, added, known, least, ones, total):
    for row in range(len(unary)):
        own = added[row if len(added) > 1 else 0]
        total[row] = _add_prefixes(unary[row], own, known[row], least, ones[row])
        if total[row] < IMPROBABLE:
            ones[row] = 0.0
            total[row] = _add_prefixes(unary[row], own, known[row], least * total[row], ones[row])


@part
def _add_prefixes(unary, added, known, least, ones):
    """Add to ``ones`` the contributions of prefixes with probability at least ``least``.

    Returns:
        The probability of the known values.
    """
    last, last_known = len(unary) - 1, -1
    for label in range(last + 1):
        if known[label] >= 0:
            last_known = label
    fields = np.empty((last + 1, last + 1))
    fields[0] = unary
    # For each length: the probability of the prefix, the probability of the prefix followed by 1, and whether
    # this continuation is still to be summed.
    prefix, with_one, waits = np.empty(last + 1), np.empty(last + 1), np.zeros(last + 1, np.bool_)
    agrees, is_one = np.zeros(last + 1), np.zeros(last + 1, np.bool_)
    prefix[0], depth = 1.0, 0
    while depth >= 0:
        if waits[depth]:
            waits[depth], value, is_one[depth] = False, with_one[depth], True
        else:
            less = np.exp(-2 * abs(fields[depth, depth]))
            more = prefix[depth] / (1 + less)
            one, zero = (more, more * less) if fields[depth, depth] >= 0 else (more * less, more)
            if depth > last_known:
                ones[depth] += one
            is_one[depth] = known[depth] == 1
            with_one[depth], waits[depth] = one, depth < last and known[depth] < 0
            value = one if is_one[depth] else zero
        if depth < last and value >= least:
            sign = 1.0 if is_one[depth] else -1.0
            for label in range(depth + 1, last + 1):
                fields[depth + 1, label] = fields[depth, label] + sign * added[depth, label]
            depth += 1
            prefix[depth], agrees[depth] = value, 0.0
        else:
            if depth == last == last_known:
                agrees[depth] = value
            while depth >= 0 and not waits[depth]:
                found = agrees[depth] if depth <= last_known else prefix[depth]
                depth -= 1
                if 0 <= depth <= last_known:
                    agrees[depth] += found
                    if is_one[depth]:
                        ones[depth] += found
    if last_known == last:
        ones[last] = agrees[0] if known[last] == 1 else 0.0
    return agrees[0] if last_known >= 0 else 1.0
