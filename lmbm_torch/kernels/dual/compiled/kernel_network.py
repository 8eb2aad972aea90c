"""Steps on pairs of dual variables of a kernel label problem, compiled.

The functions take what those of :mod:`lmbm_torch.kernels.dual.plain.kernel_network` take.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from lmbm_torch.kernels.dual.compiled.boxes import dual, fast, fast_part, gap, largest, padded
from lmbm_torch.kernels.dual.compiled.free_set import Free, solve_free
from lmbm_torch.kernels.dual.plain.boxes import PARALLEL, TINY, Box
from lmbm_torch.kernels.dual.plain.free_set import PAIR, PROMISE
from lmbm_torch.kernels.dual.plain.kernel_network import (
    CHECKED,
    HEAD_START,
    IMPATIENCE,
    NARROW,
    NEGLIGIBLE,
    SINGULAR,
)


class Room(NamedTuple):
    """Working memory of a label, made by Python: that spares its compilation.

    Args:
        shares: (instances,), of the gap.
        index: (instances,), those that matter.
        joint: flat, for the values of as many as are solved among themselves.
    """

    shares: np.ndarray
    index: np.ndarray
    joint: np.ndarray


@fast
def add_columns(joint, columns, scale):
    """joint += Σ_c scale_c columns_c columns_cᵀ, in place; ``columns`` are (columns, instances)."""
    for i in range(len(joint)):
        row = joint[i]
        for c in range(len(columns)):
            column = columns[c]
            factor = row.dtype.type(scale[c] * column[i])
            for j in range(len(row)):
                row[j] += factor * column[j]


def solve_label(joint, box, tol, steps):
    """Up to ``steps`` steps, until the gap is at most ``tol`` of the primal value."""
    size = len(box.coef)
    # Allocated once: the system clears new memory page by page, which took a third of the time.
    among = np.empty(int(NARROW * size) ** 2, joint.dtype)
    room = Room(np.empty(size), np.empty(size, np.int64), among)
    return _solve_label(joint, box, room, Free.of(size), bool(box.coef.any()), tol, steps)


@fast
def _solve_label(joint, box, room, free, is_begun, tol, steps):
    made, size = 0, len(box.coef)
    spent, credit = 0.0, HEAD_START * PAIR * size * size
    patience = 0.0 if is_begun else float(PAIR * size * size)
    while made < steps:
        open_gap = gap(box, room.shares)
        primal = open_gap + dual(box)
        if open_gap <= tol * primal:
            break
        # The primal value still falls, and the goal with it.
        goal = 0.9 * tol * primal
        before, count = made, _active(box, room, open_gap)
        if spent >= patience:
            moves, cost = solve_free(joint, box, free, 0.9 * tol, steps - made, max(spent, credit))
            made += moves
            patience = max(PROMISE * cost, IMPATIENCE * spent)
        elif count > NARROW * size:
            made += _pair_steps(joint, box, min(size, steps - made), goal)
            spent += PAIR * size * (made - before)
        else:
            most = min(10 * count, steps - made)
            made += _solve_some(joint, room, box, count, most, max(goal, 0.1 * open_gap))
            spent += PAIR * count * (made - before) + count * count
        if made == before:
            break
    return made


@fast_part
def _solve_some(joint, room, box, count, steps, goal):
    """Steps among the instances that matter, whose values are gathered; then the others' gradients."""
    index = room.index[:count]
    among = room.joint[: count * count].reshape(count, count)
    for a in range(count):
        source, target = joint[index[a]], among[a]
        for b in range(count):
            target[b] = source[index[b]]
    some = Box(
        _gathered(box.coef, index),
        _gathered(box.lower, index),
        _gathered(box.upper, index),
        _gathered(box.gradient, index),
        _gathered(box.linear, index),
    )
    made = _pair_steps(among, some, steps, goal)
    for a in range(count):
        change = some.coef[a] - box.coef[index[a]]
        if change != 0:
            box.coef[index[a]] = some.coef[a]
            _add(box.gradient, joint[index[a]], change)
    return made


@fast_part
def _gathered(values, index):
    # As values[index], numba would compile all that an index may be.
    found = np.empty(len(index))
    for a in range(len(index)):
        found[a] = values[index[a]]
    return found


@fast_part
def _pair_steps(joint, box, steps, goal):
    """Steps on the instance of largest gain and its best partner; how many were made."""
    coef, lower, upper, gradient, _linear = box
    size = len(coef)
    down, up = np.empty(size, np.float32), np.empty(size, np.float32)
    curvature, inverse = np.empty(size, np.float32), np.empty(size, np.float32)
    for i in range(size):
        down[i], up[i] = lower[i] - coef[i], upper[i] - coef[i]
        curvature[i] = max(joint[i, i], TINY)
        inverse[i] = np.float32(1) / curvature[i]
    gains, slope = np.empty(padded(size), np.float32), np.empty(size, np.float32)
    for i in range(size, len(gains)):
        gains[i] = np.float32(-2)
    shares = np.empty(size)
    for made in range(steps):
        if made % CHECKED == 0 and gap(box, shares) <= goal:
            return made
        _round(gradient, slope)
        _gains(slope, down, up, curvature, inverse, gains)
        i = largest(gains)
        if gains[i] <= 0:
            return made
        row = joint[i]
        _partner_gains(row, slope[i], curvature[i], slope, down, up, curvature, gains)
        gains[i] = -1
        j = largest(gains)
        # A single instance has no partner: the second variable is one that cannot move.
        second, similar = (0.0, 1.0, 0.0, 0.0), 0.0
        if i != j:
            second = (gradient[j], float(joint[j, j]), lower[j] - coef[j], upper[j] - coef[j])
            similar = float(row[j])
        first = (gradient[i], float(joint[i, i]), lower[i] - coef[i], upper[i] - coef[i])
        step_i, step_j = _best_steps(first, second, similar)
        _add_two(gradient, row, step_i, joint[j], step_j)
        for k, step in ((i, step_i), (j, step_j)):
            coef[k] = min(max(coef[k] + step, lower[k]), upper[k])
            down[k], up[k] = lower[k] - coef[k], upper[k] - coef[k]
    return steps


@fast_part
def _active(box, room, gap):
    """Collect those strictly inside their box, and those whose share of the gap is not negligible."""
    least, count = NEGLIGIBLE * gap / len(room.shares), 0
    for i in range(len(room.shares)):
        if room.shares[i] > least or box.lower[i] < box.coef[i] < box.upper[i]:
            room.index[count] = i
            count += 1
    return count


@fast_part
def _round(gradient, slope):
    """The gradient in single precision: a loop that also rounds takes twice as long."""
    for i in range(len(slope)):
        slope[i] = gradient[i]


@fast_part
def _gains(slope, down, up, curvature, inverse, gains):
    """How much each instance's own step raises the dual."""
    # By the inverse curvature: divisions took a third of the time.
    for i in range(len(down)):
        step = min(max(-slope[i] * inverse[i], down[i]), up[i])
        gains[i] = -step * (slope[i] + np.float32(0.5) * step * curvature[i])


@fast_part
def _partner_gains(row, slope_i, own, slope, down, up, curvature, gains):
    """How much each step would raise the dual if the instance of ``row`` stayed at its best value."""
    ratio, inverse = slope_i / own, np.float32(1) / own
    for j in range(len(down)):
        similar = np.float32(row[j])
        left = max(curvature[j] - similar * similar * inverse, np.float32(PARALLEL) * curvature[j])
        slope_j = slope[j] - ratio * similar
        step = min(max(-slope_j / left, down[j]), up[j])
        gains[j] = -step * (slope_j + np.float32(0.5) * step * left)


@fast_part
def _best_steps(first, second, similar):
    """Both steps that minimise the quadratic of two variables, each (slope, curvature, down, up)."""
    slope_i, own_i, down_i, up_i = first
    slope_j, own_j, down_j, up_j = second
    area = own_i * own_j - similar * similar
    if area > SINGULAR * own_i * own_j:
        step_i = (slope_j * similar - slope_i * own_j) / area
        step_j = (slope_i * similar - slope_j * own_i) / area
        if down_i <= step_i <= up_i and down_j <= step_j <= up_j:
            return step_i, step_j
    # Otherwise the minimum lies on one of the four edges, or both are so alike that one may stay.
    own_i, own_j = max(own_i, TINY), max(own_j, TINY)
    best_i, best_j = min(max(-slope_i / own_i, down_i), up_i), 0.0
    lowest = best_i * (slope_i + 0.5 * own_i * best_i)
    for edge in range(4):
        if edge < 2:
            step_i = down_i if edge == 0 else up_i
            step_j = min(max(-(slope_j + similar * step_i) / own_j, down_j), up_j)
        else:
            step_j = down_j if edge == 2 else up_j
            step_i = min(max(-(slope_i + similar * step_j) / own_i, down_i), up_i)
        value = step_i * (slope_i + 0.5 * own_i * step_i) + step_j * (slope_j + 0.5 * own_j * step_j)
        value += similar * step_i * step_j
        if value < lowest:
            best_i, best_j, lowest = step_i, step_j, value
    return best_i, best_j


@fast_part
def _add(gradient, row, step):
    for k in range(len(gradient)):
        gradient[k] += step * row[k]


@fast_part
def _add_two(gradient, first, step, second, other):
    for k in range(len(gradient)):
        gradient[k] += step * first[k] + other * second[k]
