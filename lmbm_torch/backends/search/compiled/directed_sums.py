"""The marginals of directed models, by the tree of their labels' prefixes, compiled for the CPU.

A prefix of the ordering has the product of its labels' conditional probabilities, and whatever follows it
sums to 1: so the label at a position is 1 with the sum of the prefixes before it, each times its conditional,
and of 2^n labellings of n labels no more than as many prefixes are looked at. A step down changes the fields
of the labels behind, of which half of all prefixes have one.
"""

from __future__ import annotations

import numpy as np

from lmbm_torch.backends.jit import njit
from lmbm_torch.backends.threads import share

# The probability of all that is left out together.
NEGLIGIBLE = 2.0**-50
EXAMPLES_PER_TASK = 16


def marginals(unary, parents):
    """P(y = 1) of every example's labels, (batch, labels), none too small by more than ``NEGLIGIBLE``.

    Labels come in the order of the model: ``unary`` (batch, labels), and row i of ``parents``, (labels,
    labels) or (batch, labels, labels), weighs those before label i; all float64.
    """
    batch, labels = unary.shape
    # What a label adds to the fields behind it is read together.
    added = np.ascontiguousarray(np.swapaxes(parents if parents.ndim == 3 else parents[None], 1, 2))
    ones = np.zeros((batch, labels))

    def sum_up(start):
        rows = slice(start, start + EXAMPLES_PER_TASK)
        _sum_up(unary[rows], added if len(added) == 1 else added[rows], NEGLIGIBLE / 2**labels, ones[rows])

    share(range(0, batch, EXAMPLES_PER_TASK), sum_up)
    return ones


@njit(nogil=True, cache=True)
def _sum_up(unary, added, least, ones):
    for row in range(len(unary)):
        _add_prefixes(unary[row], added[row if len(added) > 1 else 0], least, ones[row])


@njit(nogil=True, cache=True)
def _add_prefixes(unary, added, least, ones):
    """Add to ``ones`` what each prefix that is at least as probable says of the label behind it."""
    last = len(unary) - 1
    fields = np.empty((last + 1, last + 1))
    fields[0] = unary
    # Of the prefix of each length, and of it with a 1 behind, which waits until all with a 0 are done.
    prefix, with_one, waits = np.empty(last + 1), np.empty(last + 1), np.zeros(last + 1, np.bool_)
    prefix[0], depth = 1.0, 0
    while depth >= 0:
        if waits[depth]:
            waits[depth], value, sign = False, with_one[depth], 1.0
        else:
            value = prefix[depth] / (1 + np.exp(-2 * fields[depth, depth]))
            ones[depth] += value
            with_one[depth], waits[depth] = value, depth < last
            value, sign = prefix[depth] - value, -1.0
        if depth < last and value >= least:
            for label in range(depth + 1, last + 1):
                fields[depth + 1, label] = fields[depth, label] + sign * added[depth, label]
            depth += 1
            prefix[depth] = value
        else:
            while depth >= 0 and not waits[depth]:
                depth -= 1
