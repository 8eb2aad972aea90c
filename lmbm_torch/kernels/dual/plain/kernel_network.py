"""KN."""

from __future__ import annotations

from math import log
from typing import NamedTuple

import numpy as np

TINY = 1e-30
"""Curvature of an instance that is alike to nothing, itself included: its dual goes to a bound."""
PARALLEL = 1e-6
"""Share of an instance's curvature that others leave to it at least."""


class Box(NamedTuple):
    """The dual of one label over some instances; all arrays are (instances,) of float64.

    Args:
        coef: β, s α.
        lower, upper: the box; both are 0 where there is no loss.
        gradient: G β − linear.
        linear: γ s.
    """

    coef: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    gradient: np.ndarray
    linear: np.ndarray


def shares(box):
    """Each instance's part of the duality gap, max_b h (β − b) over its box."""
    return box.gradient * (box.coef - np.where(box.gradient > 0, box.lower, box.upper))


MOST = 1024
"""Free instances at most."""
PROBED = 16
"""Free instances at which what all will cost is estimated for the first time, then at twice as many each."""
EXPLAINED = 0.01
"""Share of their curvature that the free instances leave to the others at the end."""
PAIR = 5
"""What a step on a pair costs for each instance, in multiplications; a move also reads free rows once."""
PROMISE = 0.2
"""Share of what all moves are estimated to cost that pairs must have cost before."""


def solve_free(joint, box, tol, steps, spent):
    """Moves until the gap is at most ``tol`` of the primal value, no instance gains, or they cost too much.

    That value falls meanwhile, from known duals of another problem a hundredfold: moves to the gap that it
    asked for at first would end far too soon, and begin anew without the free instances.

    Args:
        joint: (instances, instances), G.
        box: changed in place.
        steps: moves at most.
        spent: what pairs have cost so far.

    Returns:
        How many moves were made, and what all were estimated to cost, 0 where they ended before.
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
    """What all moves will cost, given which share of curvature some free instances leave to all on average.

    Each further one is taken to explain the same share of what is left, and each instance to move once.
    """
    most = min(free * log(EXPLAINED) / log(min(left, 0.999)), size) if left > EXPLAINED else free
    return size * (most * (0.5 * size + most) + PAIR * size)


def _left(joint, own, free):
    """Each instance's curvature where the free ones answer its moves."""
    if not free:
        return own
    rows = joint[free].astype(float)
    return own - (rows * np.linalg.solve(_square(joint, own, free), rows)).sum(0)


def _square(joint, own, free):
    square = joint[np.ix_(free, free)].astype(float)
    square[np.diag_indices_from(square)] = own[free]
    return square


def _move(joint, box, k, free, own):
    """Move one instance as far as it gains; free ones that meet a bound leave, and it enters if none does."""
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


SINGULAR = 1e-10
"""Determinant of a pair, relative to the product of its diagonal, up to which it counts as zero."""
CHECKED = 32
"""Steps from one look at the gap to the next."""
NEGLIGIBLE = 0.01
"""Share of the mean gap up to which an instance at its bound is left out."""
NARROW = 0.7
"""Share of the instances up to which those that can move are solved among themselves."""
IMPATIENCE = 3.0
"""Times what pairs have cost that they may cost until exact moves are tried again."""
HEAD_START = 2.0
"""Steps on pairs of all instances, for each instance, that exact moves are credited with."""


def active(box, parts):
    """The instances that matter: strictly inside their box, or with a share, of ``parts``, of the gap."""
    inside = (box.coef > box.lower) & (box.coef < box.upper)
    return np.flatnonzero(inside | (parts > NEGLIGIBLE * parts.mean()))


def add_columns(joint, columns, scale):
    """joint += Σ_c scale_c columns_c columns_cᵀ, in place; ``columns`` are (columns, instances)."""
    joint += (scale[:, None] * columns).T @ columns


def solve_label(joint, box, tol, steps):
    """Up to ``steps`` steps, until the gap is at most ``tol`` of the primal value; those made.

    Args:
        joint: (instances, instances), G.
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
        # The primal value still falls, and the goal with it.
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
        # What is left to each partner if i answers its step in the best way.
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
    """How much each step raises the dual."""
    step = np.clip(-gradient / curvature, down, up)
    return -step * (gradient + 0.5 * step * curvature)


def _best_step(square, slope, down, up):
    """The minimum of ½ xᵀ square x + slopeᵀx over down ≤ x ≤ up, for one or two variables."""
    if len(slope) == 1:
        return np.clip(-slope / max(square[0, 0], TINY), down, up)
    if np.linalg.det(square) > SINGULAR * square[0, 0] * square[1, 1]:
        inside = np.linalg.solve(square, -slope)
        if ((down <= inside) & (inside <= up)).all():
            return inside
    # Otherwise it lies on one of the four edges, or both are so alike that the second may stay.
    edges = [np.array([np.clip(-slope[0] / max(square[0, 0], TINY), down[0], up[0]), 0.0])]
    for fixed, other in ((0, 1), (1, 0)):
        for bound in (down[fixed], up[fixed]):
            best = -(slope[other] + square[0, 1] * bound) / max(square[other, other], TINY)
            step = np.empty(2)
            step[fixed], step[other] = bound, np.clip(best, down[other], up[other])
            edges.append(step)
    return min(edges, key=lambda step: slope @ step + 0.5 * step @ square @ step)
