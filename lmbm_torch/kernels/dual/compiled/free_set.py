"""Exact moves of the dual variables of a kernel label problem, compiled.

:func:`solve_free` takes what that of :mod:`lmbm_torch.kernels.dual.plain.free_set` takes. The inverse of the
free instances' kernel values and what they leave of the others' curvature are carried along.
"""

from __future__ import annotations

from math import log
from typing import NamedTuple

import numpy as np

from lmbm_torch.kernels.dual.compiled.boxes import BLOCK, dual, fast_part, gap, largest
from lmbm_torch.kernels.dual.plain.boxes import PARALLEL, TINY
from lmbm_torch.kernels.dual.plain.free_set import EXPLAINED, MOST, PAIR, PROBED, PROMISE


class Free(NamedTuple):
    """The free instances, what the others' moves meet, and room to work in, made by Python.

    Args:
        index: (most,), the free instances, the first ``count`` of them.
        is_free: (instances,).
        inverse: (most, most), of the free instances' kernel values.
        own: (instances,), each instance's curvature.
        left: (instances,), what the free ones leave of it.
        answer: (most,), how far they go back for each unit that another one moves, likewise ``some``.
        slope: (instances,), how gradients change meanwhile, likewise ``shares`` and ``other``.
        gains: (instances,), filled up as :func:`largest` asks for.
    """

    index: np.ndarray
    is_free: np.ndarray
    inverse: np.ndarray
    own: np.ndarray
    left: np.ndarray
    answer: np.ndarray
    some: np.ndarray
    slope: np.ndarray
    shares: np.ndarray
    other: np.ndarray
    gains: np.ndarray

    @classmethod
    def of(cls, instances: int) -> Free:
        """For so many instances."""
        most = min(instances, MOST)
        return cls(
            index=np.empty(most, np.int64),
            is_free=np.empty(instances, np.bool_),
            inverse=np.empty((most, most)),
            own=np.empty(instances),
            left=np.empty(instances),
            answer=np.empty(most),
            some=np.empty(most),
            slope=np.empty(instances),
            shares=np.empty(instances),
            other=np.empty(instances),
            gains=np.zeros(-(-instances // BLOCK) * BLOCK),
        )


@fast_part
def solve_free(joint, box, free, tol, steps, spent):
    """How many moves were made, and what all were estimated to cost, 0 where they ended before."""
    _none_free(joint, free)
    answer, slope = free.answer, free.slope
    made, count, probed = 0, 0, PROBED
    while made < steps:
        open_gap = gap(box, free.shares)
        if open_gap <= tol * (open_gap + dual(box)):
            break
        if count >= probed:
            cost = _estimated(free, count)
            if PROMISE * cost > spent or count >= MOST:
                return made, cost
            probed *= 2
        k = _best(box, free)
        if k < 0:
            break
        _answer(joint, free, count, k)
        while True:
            made += 1
            own = max(slope[k], PARALLEL * free.own[k])
            wanted = -box.gradient[k] / own
            step, first = _limit(box, free, count, k, wanted)
            _move(box, free, count, k, step)
            if first < 0:
                if step == wanted and count < len(free.index):
                    _enter(free, count, k, own)
                    count += 1
                break
            leaving = free.index[first]
            box.coef[leaving] = box.upper[leaving] if answer[first] * step < 0 else box.lower[leaving]
            _leave(joint, free, count, first)
            count -= 1
    return made, 0.0


@fast_part
def _none_free(joint, free):
    for i in range(len(joint)):
        free.own[i] = free.left[i] = max(float(joint[i, i]), TINY)
        free.is_free[i] = False


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
def _best(box, free):
    """The instance that gains most by moving, −1 for none."""
    (coef, lower, upper, gradient, _linear), gains = box, free.gains
    for i in range(len(coef)):
        slope, own = gradient[i], max(free.left[i], PARALLEL * free.own[i])
        step = min(max(-slope / own, lower[i] - coef[i]), upper[i] - coef[i])
        gains[i] = 0.0 if free.is_free[i] else -step * (slope + 0.5 * step * own)
    k = largest(gains)
    return k if gains[k] > 0 else -1


@fast_part
def _answer(joint, free, count, k):
    """How far free instances go back for each unit that k moves, and how all gradients change."""
    row, some, answer, slope = joint[k], free.some, free.answer, free.slope
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
def _limit(box, free, count, k, wanted):
    """How far k moves, and which of the free instances meets its bound there, −1 for none."""
    (coef, lower, upper, _gradient, _linear), answer = box, free.answer
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
def _move(box, free, count, k, step):
    (coef, lower, upper, gradient, _linear), answer, slope = box, free.answer, free.slope
    coef[k] = min(max(coef[k] + step, lower[k]), upper[k])
    for f in range(count):
        i = free.index[f]
        coef[i] = min(max(coef[i] - answer[f] * step, lower[i]), upper[i])
    for i in range(len(gradient)):
        gradient[i] += step * slope[i]


@fast_part
def _enter(free, count, k, own):
    """One more row and column of the inverse."""
    inverse, left, answer, slope = free.inverse, free.left, free.answer, free.slope
    for f in range(count):
        share = answer[f] / own
        for g in range(count):
            inverse[f, g] += share * answer[g]
        inverse[f, count] = inverse[count, f] = -share
    inverse[count, count] = 1 / own
    free.index[count], free.is_free[k] = k, True
    for i in range(len(left)):
        left[i] -= slope[i] * slope[i] / own


@fast_part
def _leave(joint, free, count, first):
    """Without a row and column of the inverse, and the answer of those that are left to the same move."""
    index, inverse, left = free.index, free.inverse, free.left
    some, answer, slope, other = free.some, free.answer, free.slope, free.other
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
    free.is_free[index[first]] = False
    index[first], answer[first] = index[last], answer[last]
    for f in range(count):
        inverse[first, f] = inverse[last, f]
    for f in range(count):
        inverse[f, first] = inverse[f, last]
