"""Steps on the dual of the multi-class SVM with a kernel in plain NumPy: the readable reference.

The same function with the same arguments as the compiled one, but for the numbers that it draws.
"""

from __future__ import annotations

import numpy as np

BLOCK = 128
"""Instances of a block, about."""
SHARE = 0.5
"""Of all instances, the most of a block."""
VISITS = 10
"""Of each instance while its block is at hand, at most."""
ENOUGH = 0.3
"""Share of its first gap at which a block is left: one that is solved alone is far off with the others."""
SMALL = 0.2
"""Share of the block's mean gap below which an instance of it waits."""
FARTHER = 1.3
"""How much farther than to its maximum a step goes; below 2 the dual value rises all the same."""
ACTIVE = 0.01
"""Share of the mean gap from which an instance takes part, unless classes share its mass."""
MOST = 0.5
"""Share of all instances from which all take part."""
FALL = 0.1
"""Share of the gap at which those that take part have done so for long enough."""
TINY = 1e-30
"""Curvature of an instance that is alike to nothing, itself included."""


def ascend(problem, nodes, scores, tol, passes, seed):
    """Steps until the gap is at most ``tol`` of the primal value.

    An instance's step maximises the dual over its distribution over all classes. Steps are made in blocks,
    whose instances are drawn with chances that are proportional to their gaps; a pass is of blocks with as
    many as there are.

    Args:
        problem: a :class:`lmbm_torch.solvers.chains.kernel_problem.ChainKernelProblem` of chains of one
            position, the instances.
        nodes: (instances, states), changed in place; scores: (states, instances), what they give at first.
        passes: at most, whole ones.
        seed: of the blocks and of the orders inside them.

    Returns:
        The number of passes made, rounded up.
    """
    random, scores = np.random.default_rng(seed), scores.copy()
    size, upper = len(nodes), problem.upper
    wrong = np.ones_like(nodes)
    wrong[np.arange(size), problem.labels] = 0
    visits = 0
    while visits < passes * size:
        fields = scores.T + wrong
        each = upper * (fields.max(1) - (nodes * fields).sum(1))
        gap = each.sum()
        dual = upper @ ((nodes * wrong).sum(1) - 0.5 * _own(scores.T, nodes, problem.labels))
        if gap <= tol * (dual + gap):
            break
        block = np.flatnonzero(random.random(size) * gap < min(BLOCK, SHARE * size) * each)
        before = nodes[block].copy()
        fields, among, first = fields[block], problem.gram[np.ix_(block, block)], np.inf
        for _ in range(VISITS):
            found = 0.0
            for b in random.permutation(len(block)):
                i = block[b]
                own = upper[i] * (fields[b].max() - nodes[i] @ fields[b])
                found += own
                if own > 0:
                    curvature = max(upper[i] * among[b, b] / FARTHER, TINY)
                    moved = _simplex(fields[b] + curvature * nodes[i], curvature)
                    fields -= upper[i] * np.outer(among[:, b], moved - nodes[i])
                    nodes[i] = moved
            first = min(first, found)
            if found <= ENOUGH * first:
                break
        visits += max(len(block), 1)
        scores -= (problem.gram[:, block] @ (upper[block, None] * (nodes[block] - before))).T
    return -(-visits // size)


def _own(scores, nodes, labels):
    """Each instance's share of ‖w‖², over its C: its score of the truth less the expected one."""
    return scores[np.arange(len(scores)), labels] - (nodes * scores).sum(1)


def _simplex(linear, curvature):
    """The distribution a that maximises linear·a − curvature/2 ‖a‖²."""
    descending = np.sort(linear)[::-1]
    thresholds = (descending.cumsum() - curvature) / np.arange(1, len(linear) + 1)
    largest = max(int((descending > thresholds).sum()), 1)
    found = np.maximum(linear - thresholds[largest - 1], 0)
    return found / found.sum() if found.sum() > 0 else np.eye(len(linear))[linear.argmax()]
