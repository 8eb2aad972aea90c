"""Exact moves of the dual variables of a kernel label problem, compiled.

:func:`solve_free` takes what that of :mod:`lmbm_torch.backends.dual.plain.free_set` takes. The inverse of the
free instances' kernel values and what they leave of the others' curvature are carried along.
"""

from __future__ import annotations

from math import log
from typing import NamedTuple

import numpy as np

from lmbm_torch.backends.dual.compiled.boxes import dual, fast_part, gap, largest, padded
from lmbm_torch.backends.dual.plain.boxes import PARALLEL, TINY
from lmbm_torch.backends.dual.plain.free_set import EXPLAINED, MOST, PAIR, PROBED, PROMISE


class Free(NamedTuple):
    """The free instances, and what the others' moves meet.

    Args:
        index: (most,), the free instances, the first ``count`` of them.
        is_free: (instances,).
        inverse: (most, most), of the free instances' kernel values.
        own: (instances,), each instance's curvature.
        left: (instances,), what the free ones leave of it.
    """

    index: np.ndarray
    is_free: np.ndarray
    inverse: np.ndarray
    own: np.ndarray
    left: np.ndarray


@fast_part
def solve_free(joint, box, tol, steps, spent):
    """How many moves were made, and what all were estimated to cost, 0 where they ended before."""
    size = len(box.coef)
    free = _none_free(joint, min(size, MOST))
    shares, slope, other = np.empty(size), np.empty(size), np.empty(size)
    gains = np.zeros(padded(size))
    answer, some = np.empty(len(free.index)), np.empty(len(free.index))
    made, count, probed = 0, 0, PROBED
    while made < steps:
        open_gap = gap(box, shares)
        if open_gap <= tol * (open_gap + dual(box)):
            break
        if count >= probed:
            cost = _estimated(free, count)
            if PROMISE * cost > spent or count >= MOST:
                return made, cost
            probed *= 2
        k = _best(box, free, gains)
        if k < 0:
            break
        _answer(joint, free, count, k, some, answer, slope)
        while True:
            made += 1
            own = max(slope[k], PARALLEL * free.own[k])
            wanted = -box.gradient[k] / own
            step, first = _limit(box, free, count, k, answer, wanted)
            _move(box, free, count, k, answer, slope, step)
            if first < 0:
                if step == wanted and count < len(free.index):
                    _enter(free, count, k, answer, slope, own)
                    count += 1
                break
            leaving = free.index[first]
            box.coef[leaving] = box.upper[leaving] if answer[first] * step < 0 else box.lower[leaving]
            _leave(joint, free, count, first, some, answer, slope, other)
            count -= 1
    return made, 0.0


@fast_part
def _none_free(joint, most):
    size = len(joint)
    own = np.empty(size)
    for i in range(size):
        own[i] = max(float(joint[i, i]), TINY)
    return Free(np.zeros(most, np.int64), np.zeros(size, np.bool_), np.empty((most, most)), own, own.copy())


@fast_part
def _estimated(free, count):
    size = len(free.own)
    total = 0.0
    for i in range(size):
        total += max(free.left[i] / free.own[i], PARALLEL)
    left = total / size
    most = float(count)
    if left > EXPLAINED:
        most = min(count * log(EXPLAINED) / log(min(left, 0.999)), float(size))
    return size * (most * (0.5 * size + most) + PAIR * size)


@fast_part
def _best(box, free, gains):
    """The instance that gains most by moving, −1 for none."""
    coef, lower, upper, gradient, _linear = box
    for i in range(len(coef)):
        slope, own = gradient[i], max(free.left[i], PARALLEL * free.own[i])
        step = min(max(-slope / own, lower[i] - coef[i]), upper[i] - coef[i])
        gains[i] = 0.0 if free.is_free[i] else -step * (slope + 0.5 * step * own)
    k = largest(gains)
    return k if gains[k] > 0 else -1


@fast_part
def _answer(joint, free, count, k, some, answer, slope):
    """How far free instances go back for each unit that k moves, and how all gradients change."""
    row = joint[k]
    for f in range(count):
        some[f] = row[free.index[f]]
    for f in range(count):
        total = 0.0
        for g in range(count):
            total += free.inverse[f, g] * some[g]
        answer[f] = total
    for i in range(len(slope)):
        slope[i] = row[i]
    _subtract(joint, free, count, answer, slope)


@fast_part
def _subtract(joint, free, count, factors, values):
    """values −= Σ_f factors_f joint_f over the free rows, four at a time."""
    f = 0
    while f + 4 <= count:
        a, b, c, d = (
            joint[free.index[f]],
            joint[free.index[f + 1]],
            joint[free.index[f + 2]],
            joint[free.index[f + 3]],
        )
        p, q, r, s = factors[f], factors[f + 1], factors[f + 2], factors[f + 3]
        for i in range(len(values)):
            values[i] -= p * a[i] + q * b[i] + r * c[i] + s * d[i]
        f += 4
    for rest in range(f, count):
        a, p = joint[free.index[rest]], factors[rest]
        for i in range(len(values)):
            values[i] -= p * a[i]


@fast_part
def _limit(box, free, count, k, answer, wanted):
    """How far k moves, and which of the free instances meets its bound there, −1 for none."""
    coef, lower, upper, _gradient, _linear = box
    step = min(max(wanted, lower[k] - coef[k]), upper[k] - coef[k])
    first = -1
    for f in range(count):
        i = free.index[f]
        change = -answer[f] * step
        if coef[i] + change > upper[i]:
            step, first = (coef[i] - upper[i]) / answer[f], f
        elif coef[i] + change < lower[i]:
            step, first = (coef[i] - lower[i]) / answer[f], f
    return step, first


@fast_part
def _move(box, free, count, k, answer, slope, step):
    coef, lower, upper, gradient, _linear = box
    coef[k] = min(max(coef[k] + step, lower[k]), upper[k])
    for f in range(count):
        i = free.index[f]
        coef[i] = min(max(coef[i] - answer[f] * step, lower[i]), upper[i])
    for i in range(len(gradient)):
        gradient[i] += step * slope[i]


@fast_part
def _enter(free, count, k, answer, slope, own):
    """One more row and column of the inverse."""
    index, is_free, inverse, _own, left = free
    for f in range(count):
        share = answer[f] / own
        for g in range(count):
            inverse[f, g] += share * answer[g]
        inverse[f, count] = inverse[count, f] = -share
    inverse[count, count] = 1 / own
    index[count], is_free[k] = k, True
    for i in range(len(left)):
        left[i] -= slope[i] * slope[i] / own


@fast_part
def _leave(joint, free, count, first, some, answer, slope, other):
    """Without a row and column of the inverse, and the answer of those that are left to the same move."""
    index, is_free, inverse, _own, left = free
    for f in range(count):
        some[f] = -inverse[f, first]
    for i in range(len(other)):
        other[i] = 0.0
    _subtract(joint, free, count, some, other)
    pivot, share = inverse[first, first], answer[first] / inverse[first, first]
    for i in range(len(left)):
        left[i] += other[i] * other[i] / pivot
        slope[i] += share * other[i]
    for f in range(count):
        answer[f] += share * some[f]
        if f != first:
            factor = some[f] / pivot
            for g in range(count):
                inverse[f, g] += factor * inverse[first, g]
    last = count - 1
    is_free[index[first]] = False
    index[first], answer[first] = index[last], answer[last]
    for f in range(count):
        inverse[first, f] = inverse[last, f]
    for f in range(count):
        inverse[f, first] = inverse[f, last]
