"""Steps on the dual of the multi-class SVM with a kernel.

Values of all instances are stored class by class, because a step changes few classes and then adds to whole
rows. Steps are made in blocks of instances with kernel values that fit into the cache, which takes a tenth of
the time. If many instances have no duality gap, only the other instances are updated.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from lmbm_torch.kernels.dual.random import next_random, random_state, shuffle
from lmbm_torch.kernels.jit import finite, finite_part, part

# Mean number of instances in a block.
BLOCK = 128
# Largest size of a block as a share of all instances.
SHARE = 0.5
# Largest number of steps on each instance while a block is updated.
VISITS = 10
# A block is left when its gap has fallen to this share: solving one block exactly does not help the others.
ENOUGH = 0.3
# An instance is skipped if its gap is below this share of the block's mean gap.
SMALL = 0.2
# Factor by which steps are longer than the optimal step (over-relaxation); below 2 the dual still rises.
FARTHER = 1.3
# An instance is active if its gap is above this share of the mean gap, or if several classes have mass.
ACTIVE = 0.01
# If more than this share of all instances is active, all instances are updated.
MOST = 0.5
# The active instances are chosen again when the gap has fallen to this share.
FALL = 0.1
# Lower limit for curvatures, because an instance with kernel value 0 has curvature 0.
TINY = 1e-30
# Numbers of columns and of rows of the kernel matrix that are added together, so that they fit the cache.
TILE, ROWS = 256, 8
# Largest number of instances in a block; blocks are drawn at random, so their sizes vary.
LARGEST = BLOCK + BLOCK // 4


class Instances(NamedTuple):
    """Some instances with their dual variables and scores.

    Args:
        gram: (instances, instances), kernel values.
        labels: (instances,), true classes.
        upper: (instances,), weights of the losses.
        nodes: (states, instances), a distribution over the classes for each instance.
        fields: (states, instances), loss + score of each class.
    """

    gram: np.ndarray
    labels: np.ndarray
    upper: np.ndarray
    nodes: np.ndarray
    fields: np.ndarray


def ascend(problem, nodes, scores, tol, passes, seed):
    """Run steps until the duality gap divided by the primal value is at most ``tol``.

    A step maximises the dual over the distribution of one instance. Blocks of instances are drawn with
    probabilities proportional to the gaps. As many steps as there are instances count as a pass.

    Args:
        problem: a :class:`lmbm_torch.solvers.chains.kernel_problem.ChainKernelProblem` of chains of one
            position, the instances.
        nodes: (instances, states), changed in place.
        scores: (states, instances), scores that ``nodes`` give at the start.
        tol: relative duality gap at which to stop.
        passes: largest number of passes.
        seed: seed of the blocks and of the orders inside blocks.

    Returns:
        The number of passes, rounded up.
    """
    by_class, fields = np.ascontiguousarray(nodes.T), scores + 1
    fields[problem.labels, np.arange(len(nodes))] -= 1
    made = _ascend(problem.gram, problem.labels, problem.upper, by_class, fields, tol, passes, seed)
    nodes[:] = by_class.T
    return made


@finite
def _ascend(gram, labels, upper, nodes, fields, tol, passes, seed):
    everything = Instances(gram, labels, upper, nodes, fields)
    size = len(labels)
    random = random_state(seed)
    gaps, index = np.empty(size), np.empty(size, np.int64)
    budget = passes * size
    visits = 0
    while visits < budget:
        gap, dual = _values(everything, gaps)
        # The goal is computed again in each round, because the primal value decreases.
        goal = 0.9 * tol * (dual + gap)
        if gap <= tol * (dual + gap):
            break
        count = _active(everything, gaps, ACTIVE * gap / size, index)
        if count > MOST * size:
            made = _rounds(everything, goal, min(size, budget - visits), random)
        else:
            some = _gathered(everything, index, count, _room(count, len(nodes)))
            made = _rounds(some, max(goal, FALL * gap), budget - visits, random)
            _put_back(everything, index, some)
        # Count at least one step, so that the loop ends even if rounding leaves nothing to do.
        visits += max(made, 1)
    return (visits + size - 1) // size


@part
def _room(count, states):
    """Allocate memory into which :func:`_gathered` copies up to ``count`` instances."""
    return (
        np.empty(count * count),
        np.empty(count, np.int64),
        np.empty(count),
        np.empty(states * count),
        np.empty(states * count),
    )


@finite_part
def _values(some, gaps):
    """Return the duality gap, the sum of ``gaps``, and the dual value (valid if all instances are given).

    Loops run over the instances for each class, because such loops are vectorised.
    """
    _gram, labels, upper, nodes, fields = some
    size = len(labels)
    expected = np.zeros(size)
    for i in range(size):
        gaps[i] = fields[0, i]
    for s in range(len(nodes)):
        own, mass = fields[s], nodes[s]
        for i in range(size):
            gaps[i] = max(gaps[i], own[i])
        for i in range(size):
            expected[i] += mass[i] * own[i]
    gap, dual = 0.0, 0.0
    for i in range(size):
        gaps[i] = upper[i] * (gaps[i] - expected[i])
        gap += gaps[i]
        y = labels[i]
        loss = 1.0 - nodes[y, i]
        dual += upper[i] * (loss - 0.5 * (fields[y, i] - expected[i] + loss))
    return gap, dual


@finite_part
def _active(some, gaps, least, index):
    """Write instances with a gap above ``least``, or mass on several classes, to ``index``; count them."""
    count = 0
    for i in range(len(gaps)):
        takes_part = gaps[i] > least
        if not takes_part and some.upper[i] > 0.0:
            shares = 0
            for s in range(len(some.nodes)):
                shares += some.nodes[s, i] > 0.0
            takes_part = shares > 1
        if takes_part:
            index[count] = i
            count += 1
    return count


@finite_part
def _gathered(some, index, count, room):
    """Copy the instances ``index[:count]`` to contiguous memory."""
    gram, labels, upper, nodes, fields = room
    states = len(some.nodes)
    found = Instances(
        gram[: count * count].reshape(count, count),
        labels[:count],
        upper[:count],
        nodes[: states * count].reshape(states, count),
        fields[: states * count].reshape(states, count),
    )
    for a in range(count):
        i = index[a]
        source, target = some.gram[i], found.gram[a]
        for b in range(count):
            target[b] = source[index[b]]
        found.labels[a], found.upper[a] = some.labels[i], some.upper[i]
    for s in range(states):
        for a in range(count):
            found.nodes[s, a] = some.nodes[s, index[a]]
            found.fields[s, a] = some.fields[s, index[a]]
    return found


@finite_part
def _put_back(some, index, own):
    """Copy the distributions of ``own`` back, and update all scores; scores in ``own`` are overwritten."""
    moved = own.fields
    count, size = len(own.labels), len(some.labels)
    for s in range(len(moved)):
        for a in range(count):
            i = index[a]
            moved[s, a] = own.upper[a] * (own.nodes[s, a] - some.nodes[s, i])
            some.nodes[s, i] = own.nodes[s, a]
    for first in range(0, size, TILE):
        last = min(first + TILE, size)
        a = 0
        while a + ROWS <= count:
            _add_rows(some.gram, index[a : a + ROWS], moved[:, a : a + ROWS], some.fields, first, last)
            a += ROWS
        for rest in range(a, count):
            row = some.gram[index[rest], first:last]
            for s in range(len(moved)):
                factor, values = moved[s, rest], some.fields[s, first:last]
                if factor != 0.0:
                    for j in range(len(values)):
                        values[j] -= factor * row[j]


@finite_part
def _add_rows(gram, index, moved, fields, first, last):
    """Subtract eight kernel rows, multiplied by ``moved``, from some columns of the fields."""
    a, b = gram[index[0], first:last], gram[index[1], first:last]
    c, d = gram[index[2], first:last], gram[index[3], first:last]
    e, f = gram[index[4], first:last], gram[index[5], first:last]
    g, h = gram[index[6], first:last], gram[index[7], first:last]
    for s in range(len(fields)):
        p, q, r, t = moved[s, 0], moved[s, 1], moved[s, 2], moved[s, 3]
        u, v, w, x = moved[s, 4], moved[s, 5], moved[s, 6], moved[s, 7]
        any_moved = p != 0.0 or q != 0.0 or r != 0.0 or t != 0.0
        if any_moved or u != 0.0 or v != 0.0 or w != 0.0 or x != 0.0:
            values = fields[s, first:last]
            for j in range(len(values)):
                values[j] -= p * a[j] + q * b[j] + r * c[j] + t * d[j]
                values[j] -= u * e[j] + v * f[j] + w * g[j] + x * h[j]


@finite_part
def _rounds(some, goal, budget, random):
    """Update blocks until the gap is at most ``goal``, in about ``budget`` steps; return their number."""
    size = len(some.labels)
    wanted = min(BLOCK, SHARE * size)
    largest = min(size, LARGEST)
    room = _room(largest, len(some.nodes))
    gaps, index, order = np.empty(size), np.empty(size, np.int64), np.empty(largest, np.int64)
    visits = 0
    while visits < budget:
        gap, _dual = _values(some, gaps)
        if gap <= goal:
            break
        count = _drawn(gaps, gap, wanted, largest, index, random)
        block = _gathered(some, index, count, room)
        _visit(block, order, random)
        _put_back(some, index, block)
        visits += max(count, 1)
    return visits


@finite_part
def _drawn(gaps, gap, wanted, largest, index, random):
    """Draw the instances of the next block; return how many were drawn."""
    size, count = len(gaps), 0
    # Begin at a random instance, because the block may be full before the last instance is reached.
    begin = np.int64((next_random(random) >> np.uint64(11)) % np.uint64(size))
    for k in range(size):
        i = begin + k if begin + k < size else begin + k - size
        chance = (next_random(random) >> np.uint64(11)) * 2.0**-53
        if chance * gap < wanted * gaps[i] and count < largest:
            index[count] = i
            count += 1
    return count


@finite_part
def _visit(block, order, random):
    """Run steps on the instances of a block, several times in random order."""
    gram, _labels, upper, nodes, fields = block
    states, size = nodes.shape
    linear = np.empty(states)
    goal, least = 0.0, 0.0
    for a in range(size):
        order[a] = a
    for made in range(VISITS):
        shuffle(order, size, random)
        found = 0.0
        for k in range(size):
            i = order[k]
            best, expected = fields[0, i], 0.0
            for s in range(states):
                linear[s] = fields[s, i]
                best = max(best, linear[s])
                expected += nodes[s, i] * linear[s]
            gap = upper[i] * (best - expected)
            found += gap
            if gap <= least:
                continue
            curvature = max(upper[i] * gram[i, i] / FARTHER, TINY)
            for s in range(states):
                linear[s] += curvature * nodes[s, i]
            _to_simplex(linear, curvature)
            row = gram[i]
            for s in range(states):
                change = linear[s] - nodes[s, i]
                if change != 0.0:
                    nodes[s, i] = linear[s]
                    change *= upper[i]
                    values = fields[s]
                    for j in range(size):
                        values[j] -= change * row[j]
        if made == 0:
            goal = ENOUGH * found
        if found <= goal:
            break
        least = SMALL * found / size


@finite_part
def _to_simplex(linear, curvature):
    """Replace ``linear`` by the distribution a that maximises linear·a − curvature/2 ‖a‖².

    The solution has the form max(linear − θ, 0) divided by the sum of all entries. Newton steps on θ from
    below reach the solution, because the sum is convex in θ.
    """
    states = len(linear)
    top = 0
    for s in range(states):
        if linear[s] > linear[top]:
            top = s
    threshold = linear[top] - curvature
    last = 0
    # Newton's method needs at most `states` steps; the limit prevents cycles by rounding.
    for _ in range(states + 1):
        total, count = 0.0, 0
        for s in range(states):
            if linear[s] > threshold:
                total += linear[s]
                count += 1
        if count == last or count == 0:
            break
        threshold, last = (total - curvature) / count, count
    total = 0.0
    for s in range(states):
        linear[s] = max(linear[s] - threshold, 0.0)
        total += linear[s]
    if total <= 0.0:
        # The values are so large that rounding removes the curvature: put all mass on the largest.
        linear[top] = total = 1.0
    for s in range(states):
        linear[s] /= total
