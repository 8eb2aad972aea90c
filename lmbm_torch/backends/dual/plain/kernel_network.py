"""Steps on pairs of dual variables of a kernel label problem, in plain NumPy.

With β = s α the dual of one label is, up to its sign, the box-constrained quadratic programme

    min_β ½ βᵀGβ − linearᵀβ,  lower ≤ β ≤ upper,

without an equality constraint, since the intercept is part of the joint kernel G. A step takes the instance
whose own move gains most and the partner with which it gains most (Steinwart, Hush and Scovel, Training SVMs
without offset, 2011), and moves both to the best point of their box. Where few instances can still move they
are solved among themselves.

The readable reference of the compiled steps. A box's ``coef`` and ``gradient`` are changed in place.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

TINY = 1e-30
"""Curvature of an instance that is alike to nothing, itself included: its dual goes to a bound."""
PARALLEL = 1e-6
"""Share of an instance's curvature that a partner leaves to it at least."""
SINGULAR = 1e-10
"""Determinant of a pair, relative to the product of its diagonal, up to which it counts as zero."""
CHECKED = 32
"""Steps from one look at the gap to the next."""
NEGLIGIBLE = 0.01
"""Share of the mean gap up to which an instance at its bound is left out."""
NARROW = 0.7
"""Share of the instances up to which those that can move are solved among themselves."""


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


def add_columns(joint, columns, scale):
    """joint += Σ_c scale_c columns_c columns_cᵀ, in place; ``columns`` are (columns, instances)."""
    joint += (scale[:, None] * columns).T @ columns


def solve_label(joint, box, tol, steps):
    """Up to ``steps`` steps, until the gap is at most ``tol`` of the primal value; those made.

    Args:
        joint: (instances, instances), G.
    """
    made = 0
    while made < steps:
        shares = _shares(box)
        gap = shares.sum()
        primal = gap + 0.5 * box.coef @ (box.linear - box.gradient)
        if gap <= tol * primal:
            break
        # The primal value still falls, and the goal with it.
        goal = 0.9 * tol * primal
        index = np.flatnonzero(
            ((box.coef > box.lower) & (box.coef < box.upper)) | (shares > NEGLIGIBLE * shares.mean())
        )
        before = made
        if len(index) > NARROW * len(shares):
            made += _pair_steps(joint, box, min(len(shares), steps - made), goal)
        else:
            some = Box(*(values[index] for values in box))
            most = min(10 * len(index), steps - made)
            made += _pair_steps(joint[np.ix_(index, index)], some, most, max(goal, 0.1 * gap))
            box.gradient[:] += (some.coef - box.coef[index]) @ joint[index]
            box.coef[index] = some.coef
        if made == before:
            break
    return made


def _shares(box):
    """Each instance's part of the duality gap, max_b h (β − b) over its box."""
    return box.gradient * (box.coef - np.where(box.gradient > 0, box.lower, box.upper))


def _pair_steps(joint, box, steps, goal):
    coef, lower, upper, gradient, _ = box
    own = np.maximum(np.diag(joint), TINY)
    for made in range(steps):
        if made % CHECKED == 0 and _shares(box).sum() <= goal:
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
