"""Exact moves of the dual variables inside their box, for a kernel label problem that pairs leave unsolved.

Where instances are much alike, pairs of them crawl: a hundred steps on each change hardly anything. Here a
set of free instances stays at its common optimum. Another one moves, and the free ones answer its move, until
its own optimum is reached, and it becomes free, or one of them meets a bound, and is free no more. That is
the simplex method of support vectors (Scheinberg 2006), begun with no free instance and with duals anywhere
in their box. It is cheap while few are free, as where kernel values have a low rank; so it goes on only while
it promises to cost no more than pairs have.

The readable reference of the compiled moves.
"""

from __future__ import annotations

from math import log

import numpy as np

from lmbm_torch.kernels.dual.plain.boxes import PARALLEL, TINY, shares

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
