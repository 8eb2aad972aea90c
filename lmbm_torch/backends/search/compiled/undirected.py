"""The search of :mod:`~lmbm_torch.backends.search.plain.undirected`, compiled; it visits the same nodes."""

from __future__ import annotations

import numpy as np
from numba import njit

from lmbm_torch.backends.search.plain.undirected import Best, UndirectedProblem, start
from lmbm_torch.backends.threads import share


def search(problem: UndirectedProblem) -> Best:
    """The labellings of least loss; threads take the examples as they get free."""
    best = start(problem)
    share(range(len(problem.fields)), lambda example: _search_example(problem, best, example))
    return best


@njit(nogil=True, cache=True)
def _decide(margin, spin, row, spins, before, after, waiting):
    """Fields once one more label has its spin, and what all labels lose at least."""
    bound = 0.0
    for i in range(len(row)):
        field = before[i] + spin * row[i]
        after[i] = field
        agreement = abs(field) if spins[i] == 0 else spins[i] * field
        bound += max(margin - agreement - waiting[i], 0.0)
    return bound


@njit(nogil=True, cache=True)
def _search_example(problem, best, example):
    couplings, known, margin = problem.couplings[example], problem.known[example], problem.margin
    labels = len(known)
    last = labels - 1
    waiting, settled = np.zeros((labels + 1, labels)), np.zeros((labels + 1, labels))
    spins, is_last_branch = np.zeros(labels), np.zeros(labels, np.bool_)
    bounds = np.empty(labels + 1)
    for position in range(last, -1, -1):
        for i in range(labels):
            waiting[position, i] = waiting[position + 1, i] + abs(couplings[position, i])
    fields = problem.fields[example]
    bounds[0] = _decide(margin, 0.0, fields, spins, fields, settled[0], waiting[0])
    slack = problem.round_off * (margin + (np.abs(fields) + waiting[0]).max())
    least, threshold, nodes, position, is_new = np.inf, np.inf, 0, 0, True
    while position >= 0 and not (nodes >= problem.node_limit and least < np.inf):
        if is_new:
            agreeing = 1.0 if settled[position, position] >= 0 else -1.0
            spins[position] = agreeing if known[position] == 0 else known[position]
            is_last_branch[position] = known[position] != 0
        else:
            spins[position] *= -1
            is_last_branch[position] = True
        depth = position + 1
        bounds[depth] = _decide(
            margin,
            spins[position],
            couplings[position],
            spins,
            settled[position],
            settled[depth],
            waiting[depth],
        )
        nodes += 1
        is_new = bounds[depth] < threshold and position < last
        if is_new:
            position = depth
            continue
        if bounds[depth] < threshold:
            least, threshold = bounds[depth], bounds[depth] - slack
            best.spins[example] = spins
        while position >= 0 and (is_last_branch[position] or bounds[position] >= threshold):
            spins[position] = 0
            position -= 1
    for earlier in range(position):
        if not is_last_branch[earlier]:
            position = earlier
            break
    best.nodes[example], best.proven[example] = nodes, position < 0
    best.bound[example] = least if position < 0 else min(least, bounds[position])
