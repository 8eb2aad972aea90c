"""Steps on the dual variables of a kernel label problem, in plain NumPy: the readable reference.

With β = s α the dual of a label is, up to the sign,

    min_β ½ βᵀGβ − linearᵀβ,  lower ≤ β ≤ upper,

without an equality constraint, because the intercept is part of the joint kernel G.

A step takes the instance with the largest gain of a single move and the partner with the largest gain of a
pair (Steinwart, Hush and Scovel, Training SVMs without offset, 2011), and moves both to the best point of the
box. If few instances can still move, only these instances are solved. Exact moves (:func:`solve_free`) finish
problems that pairs leave unsolved for long, and start from the duals of a similar problem if few instances
are free: pairs would first move single instances a long way, and lose most of the known solution.

If instances are much alike, pairs are slow: a hundred steps on each instance change hardly anything. Exact
moves keep a set of free instances at the common optimum. Another instance moves, with the free instances
following, until the own optimum, where the instance becomes free, or until a free instance meets a bound and
leaves the set: the simplex method of support vectors (Scheinberg 2006), started with no free instance and
duals anywhere in the box. The cost is low for few free instances, for example for kernel values of low rank,
so exact moves continue only if the estimated cost is at most the cost of pairs so far.
"""

from __future__ import annotations

from math import log
from typing import NamedTuple

import numpy as np

# Least curvature of an instance, for instances without any similarity: the dual goes to a bound.
TINY = 1e-30
# Least share of an instance's curvature left by other instances.
PARALLEL = 1e-6


class Box(NamedTuple):
    """The dual of one label over some instances; all arrays are (instances,) of float64.

    Args:
        coef: β, s α.
        lower: lower bounds; 0 for instances without a loss.
        upper: upper bounds; 0 for instances without a loss.
        gradient: G β − linear.
        linear: γ s.
    """

    coef: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    gradient: np.ndarray
    linear: np.ndarray


def shares(box):
    """Return each instance's part of the duality gap, max_b h (β − b) over the box."""
    return box.gradient * (box.coef - np.where(box.gradient > 0, box.lower, box.upper))


# Most free instances of exact moves.
MOST = 1024
# Free instances at the first estimate of the cost; the next estimates are at twice as many each.
PROBED = 16
# Share of curvature left by the free instances at the end of exact moves.
EXPLAINED = 0.01
# Cost of a step on a pair per instance, in multiplications; a move also reads the free rows once.
PAIR = 5
# Share of exact moves' estimated cost that pairs must have cost before.
PROMISE = 0.2


def solve_free(joint, box, tol, steps, spent):
    """Run exact moves until the gap is small, no gain is left, or the cost is too high.

    The primal value decreases meanwhile, from known duals of another problem a hundredfold: a gap fixed at
    the start would stop far too early, and the free instances would be lost.

    Args:
        joint: (instances, instances), G.
        box: changed in place.
        tol: gap at which to stop, relative to the primal value.
        steps: most moves.
        spent: cost of pairs so far.

    Returns:
        The number of moves, and the estimated cost of all moves; 0 after an end before the estimate.
    """
    own = np.maximum(np.diag(joint), TINY).astype(float)
    free: list[int] = []
    made, probed = 0, PROBED
    while made < steps:
        gap = shares(box).sum()
        if gap <= tol * (gap + 0.5 * box.coef @ (box.linear - box.gradient)):
            break
        left = np.maximum(_left(joint, own, free), PARALLEL * own)
        if len(free) >= probed:
            cost = estimated(len(free), len(own), (left / own).mean())
            if PROMISE * cost > spent or len(free) >= MOST:
                return made, cost
            probed *= 2
        step = np.clip(-box.gradient / left, box.lower - box.coef, box.upper - box.coef)
        gains = -step * (box.gradient + 0.5 * step * left)
        gains[free] = 0
        if gains.max() <= 0:
            break
        made += _move(joint, box, int(gains.argmax()), free, own)
    return made, 0.0


def estimated(free, size, left):
    """Estimate the cost of all moves from the average share of curvature left by ``free`` free instances.

    Each further free instance is assumed to explain the same share of the remainder, and each instance to
    move once.
    """
    most = min(free * log(EXPLAINED) / log(min(left, 0.999)), size) if left > EXPLAINED else free
    return size * (most * (0.5 * size + most) + PAIR * size)


def _left(joint, own, free):
    """Return each instance's curvature with the free instances following."""
    if not free:
        return own
    rows = joint[free].astype(float)
    return own - (rows * np.linalg.solve(_square(joint, own, free), rows)).sum(0)


def _square(joint, own, free):
    square = joint[np.ix_(free, free)].astype(float)
    square[np.diag_indices_from(square)] = own[free]
    return square


def _move(joint, box, k, free, own):
    """Move one instance as far as the dual gains; return the number of moves.

    Free instances at a bound leave the set; the instance joins if no free instance has left.
    """
    made = 0
    while True:
        made += 1
        answer = np.linalg.solve(_square(joint, own, free), joint[free, k]) if free else np.zeros(0)
        slope = joint[k] - answer @ joint[free]
        wanted = -box.gradient[k] / max(slope[k], PARALLEL * own[k])
        moving, by = [*free, k], np.append(-answer, 1.0) * wanted
        room = np.where(by > 0, box.upper[moving] - box.coef[moving], box.lower[moving] - box.coef[moving])
        limits = np.divide(room, by, out=np.full(len(by), np.inf), where=by != 0)
        first = int(limits.argmin())
        share = min(limits[first], 1.0)
        box.coef[moving] = np.clip(box.coef[moving] + share * by, box.lower[moving], box.upper[moving])
        box.gradient[:] += share * wanted * slope
        if share == 1 or moving[first] == k:
            if share == 1 and len(free) < MOST:
                free.append(k)
            return made
        left = free.pop(first)
        box.coef[left] = (box.upper if by[first] > 0 else box.lower)[left]


# Determinant of a pair, relative to the product of the diagonal, that counts as zero.
SINGULAR = 1e-10
# Steps between two checks of the gap.
CHECKED = 32
# Share of the mean gap up to which an instance at a bound is inactive.
NEGLIGIBLE = 0.01
# Share of the instances up to which the active instances are solved separately.
NARROW = 0.7
# Multiple of the cost of pairs so far until exact moves are tried again.
IMPATIENCE = 3.0
# Credit of exact moves: steps on pairs of all instances, per instance.
HEAD_START = 2.0


def active(box, parts):
    """Return the instances strictly inside the box, or with a share of the gap in ``parts``."""
    inside = (box.coef > box.lower) & (box.coef < box.upper)
    return np.flatnonzero(inside | (parts > NEGLIGIBLE * parts.mean()))


def add_columns(joint, columns, scale):
    """Add Σ_c scale_c columns_c columns_cᵀ to ``joint`` in place; ``columns`` are (columns, instances)."""
    joint += (scale[:, None] * columns).T @ columns


def solve_label(joint, box, tol, steps):
    """Run up to ``steps`` steps, until the gap is at most ``tol`` of the primal value; return the number.

    Args:
        joint: (instances, instances), G.
        box: ``coef`` and ``gradient`` are changed in place.
    """
    made, size = 0, len(box.coef)
    spent, patience = 0.0, PAIR * size**2
    credit = HEAD_START * patience
    if box.coef.any():
        patience = 0.0
    while made < steps:
        parts = shares(box)
        gap = parts.sum()
        primal = gap + 0.5 * box.coef @ (box.linear - box.gradient)
        if gap <= tol * primal:
            break
        # The primal value still decreases, and so does the goal.
        goal = 0.9 * tol * primal
        index = active(box, parts)
        before = made
        if spent >= patience:
            moves, cost = solve_free(joint, box, 0.9 * tol, steps - made, max(spent, credit))
            made += moves
            patience = max(PROMISE * cost, IMPATIENCE * spent)
        elif len(index) > NARROW * size:
            made += _pair_steps(joint, box, min(size, steps - made), goal)
            spent += PAIR * size * (made - before)
        else:
            some = Box(*(values[index] for values in box))
            most = min(10 * len(index), steps - made)
            made += _pair_steps(joint[np.ix_(index, index)], some, most, max(goal, 0.1 * gap))
            box.gradient[:] += (some.coef - box.coef[index]) @ joint[index]
            box.coef[index] = some.coef
            spent += PAIR * len(index) * (made - before) + len(index) ** 2
        if made == before:
            break
    return made


def _pair_steps(joint, box, steps, goal):
    coef, lower, upper, gradient, _ = box
    own = np.maximum(np.diag(joint), TINY)
    for made in range(steps):
        if made % CHECKED == 0 and shares(box).sum() <= goal:
            return made
        gains = _gains(gradient, own, lower - coef, upper - coef)
        i = gains.argmax()
        if gains[i] <= 0:
            return made
        # Curvature left to each partner if i responds optimally.
        left = np.maximum(own - joint[i] ** 2 / own[i], PARALLEL * own)
        gains = _gains(gradient - gradient[i] / own[i] * joint[i], left, lower - coef, upper - coef)
        gains[i] = -1
        j = gains.argmax()
        # A single instance has no partner.
        pair = [i, j] if i != j else [i]
        step = _best_step(
            joint[np.ix_(pair, pair)], gradient[pair], (lower - coef)[pair], (upper - coef)[pair]
        )
        coef[pair] = np.clip(coef[pair] + step, lower[pair], upper[pair])
        gradient += step @ joint[pair]
    return steps


def _gains(gradient, curvature, down, up):
    """Return how much each step raises the dual."""
    step = np.clip(-gradient / curvature, down, up)
    return -step * (gradient + 0.5 * step * curvature)


def _best_step(square, slope, down, up):
    """Return the minimum of ½ xᵀ square x + slopeᵀx over down ≤ x ≤ up, for one or two variables."""
    if len(slope) == 1:
        return np.clip(-slope / max(square[0, 0], TINY), down, up)
    if np.linalg.det(square) > SINGULAR * square[0, 0] * square[1, 1]:
        inside = np.linalg.solve(square, -slope)
        if ((down <= inside) & (inside <= up)).all():
            return inside
    # Otherwise the minimum is on one of the four edges, or both instances are nearly equal and the second may
    # stay.
    edges = [np.array([np.clip(-slope[0] / max(square[0, 0], TINY), down[0], up[0]), 0.0])]
    for fixed, other in ((0, 1), (1, 0)):
        for bound in (down[fixed], up[fixed]):
            best = -(slope[other] + square[0, 1] * bound) / max(square[other, other], TINY)
            step = np.empty(2)
            step[fixed], step[other] = bound, np.clip(best, down[other], up[other])
            edges.append(step)
    return min(edges, key=lambda step: slope @ step + 0.5 * step @ square @ step)
