"""The marginals of directed models, by the tree of their labels' prefixes, compiled for the CPU.

A prefix of the ordering has the product of its labels' conditional probabilities, and whatever follows it
sums to 1: so the label at a position is 1 with the sum of the prefixes before it, each times its conditional,
and of 2^n labellings of n labels no more than as many prefixes are looked at. A step down changes the fields
of the labels behind, of which half of all prefixes have one. A known label has one branch alone; what follows
a prefix up to the last known label sums to the probability of what is known there, which comes back up.
"""

from __future__ import annotations

import numpy as np

from lmbm_torch.kernels.jit import njit, part
from lmbm_torch.kernels.threads import share

# The probability of all that is left out together.
NEGLIGIBLE = 2.0**-50
EXAMPLES_PER_TASK = 16
# What is known and less probable is summed anew, with less left out.
IMPROBABLE = 1e-3


def marginals(unary, parents, known):
    """P(y = 1, known) of every example's labels, (batch, labels), and P(known), (batch,).

    None is too small by more than ``NEGLIGIBLE`` or, of what is known and improbable, P(known) times as much.
    Labels come in the order of the model: ``unary`` (batch, labels), and row i of ``parents``, (labels,
    labels) or (batch, labels, labels), weighs those before label i; all float64. ``known`` (batch, labels) is
    −1 for a free label.
    """
    batch, labels = unary.shape
    # What a label adds to the fields behind it is read together.
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
    """Add to ``ones`` what each prefix that is at least as probable says of the label behind it.

    Returns:
        The probability of what is known.
    """
    last, last_known = len(unary) - 1, -1
    for label in range(last + 1):
        if known[label] >= 0:
            last_known = label
    fields = np.empty((last + 1, last + 1))
    fields[0] = unary
    # Of the prefix of each length, and of it with a 1 behind, which waits until all with a 0 are done; what
    # agrees with the known labels behind it; and the label that is looked at behind it.
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
