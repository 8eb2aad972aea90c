"""The marginals of directed models by the tree of the labels' prefixes.

A prefix of the ordering has the product of the labels' conditional probabilities, and all continuations of a
prefix sum to 1. So P(label = 1) is the sum over prefixes before the label, each times the conditional
probability, and only the prefixes of the 2^n labellings are visited. A step down changes the fields of later
labels; half of all prefixes have only one later label. A known label has a single branch; the continuations
of a prefix up to the last known label sum to the probability of the known values, returned upwards.
"""

from __future__ import annotations

import numpy as np

from lmbm_torch.kernels.jit import njit, part
from lmbm_torch.kernels.threads import share

# Most probability left out in total.
NEGLIGIBLE = 2.0**-50
EXAMPLES_PER_TASK = 16
# Known values less probable than IMPROBABLE are summed again with less left out.
IMPROBABLE = 1e-3


def marginals(unary, parents, known):
    """Return P(y = 1, known) of every example's labels, (batch, labels), and P(known), (batch,).

    No result is too small by more than ``NEGLIGIBLE`` or, for improbable known values, P(known) times
    ``NEGLIGIBLE``.

    Args:
        unary: (batch, labels), in the order of the model, float64.
        parents: (labels, labels) or (batch, labels, labels), row i the weights of the labels before label i.
        known: (batch, labels), −1 for a free label.
    """
    batch, labels = unary.shape
    # A label's effects on later fields are contiguous.
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
    # Probability of the prefix of each length, and of the prefix followed by 1, which waits until all
    # prefixes with 0 are done; probability in agreement with later known labels; value of the label behind
    # the prefix.
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
