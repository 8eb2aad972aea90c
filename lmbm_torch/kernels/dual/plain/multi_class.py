"""Steps on the dual of the multi-class SVM with a kernel, in plain NumPy: the readable reference.

Functions and arguments are those of the compiled module; random numbers differ.
"""

from __future__ import annotations

import numpy as np

# Instances of a block, on average.
BLOCK = 128
# Largest share of all instances in a block.
SHARE = 0.5
# Most visits of each instance per block.
VISITS = 10
# Share of the block's first gap at which a block is left: a block solved alone is far from the joint optimum.
ENOUGH = 0.3
# Share of the block's mean gap below which an instance waits.
SMALL = 0.2
# Over-relaxation of a step; below 2 the dual value still rises.
FARTHER = 1.3
# Share of the mean gap from which an instance is active; instances with mass on several classes always are.
ACTIVE = 0.01
# Share of active instances from which all instances take part.
MOST = 0.5
# Share of the gap at which the active instances are chosen anew.
FALL = 0.1
# Least curvature of an instance, for instances without any similarity.
TINY = 1e-30


def ascend(problem, nodes, scores, tol, passes, seed):
    """Run steps until the gap is at most ``tol`` of the primal value.

    An instance's step maximises the dual over the distribution over all classes. Steps are made in blocks of
    instances, drawn with probabilities proportional to the gaps; a pass is as many visits as instances.

    Args:
        problem: a :class:`lmbm_torch.solvers.chains.kernel_problem.ChainKernelProblem` of chains of one
            position, the instances.
        nodes: (instances, states), changed in place.
        scores: (states, instances), scores of ``nodes`` at the start.
        tol: relative gap at which to stop.
        passes: most passes.
        seed: seed of the blocks and of the orders inside blocks.

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
    """Return each instance's share of ‖w‖² divided by C: the score of the truth less the expected score."""
    return scores[np.arange(len(scores)), labels] - (nodes * scores).sum(1)


def _simplex(linear, curvature):
    """Return the distribution a that maximises linear·a − curvature/2 ‖a‖²."""
    descending = np.sort(linear)[::-1]
    thresholds = (descending.cumsum() - curvature) / np.arange(1, len(linear) + 1)
    largest = max(int((descending > thresholds).sum()), 1)
    found = np.maximum(linear - thresholds[largest - 1], 0)
    return found / found.sum() if found.sum() > 0 else np.eye(len(linear))[linear.argmax()]
