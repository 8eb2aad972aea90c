"""Steps on pairs of dual variables of a kernel label problem, in plain NumPy.

A step takes the instance whose own move gains most and the partner with which it gains most (Steinwart, Hush
and Scovel, Training SVMs without offset, 2011), and moves both to the best point of their box. Where few
instances can still move they are solved among themselves. What pairs leave unsolved for long is ended by
exact moves, :mod:`~lmbm_torch.kernels.dual.plain.free_set`. Duals of a similar problem are begun with these,
where few instances are free: pairs first move single ones a long way, and lose most of what is known.

The readable reference of the compiled steps. A box's ``coef`` and ``gradient`` are changed in place.
"""

from __future__ import annotations

import numpy as np

from lmbm_torch.kernels.dual.plain.boxes import PARALLEL, TINY, Box, shares
from lmbm_torch.kernels.dual.plain.free_set import PAIR, PROMISE, solve_free

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
