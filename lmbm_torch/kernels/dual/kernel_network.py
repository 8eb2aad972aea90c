"""Steps on the dual variables of a kernel label problem.

With β = s α (spin times dual variable), the dual of a label is, up to the sign,

    min_β ½ βᵀGβ − linearᵀβ,  lower ≤ β ≤ upper,

without an equality constraint, because the joint kernel G contains the intercept.

A pair step chooses the instance whose own step gains most, and the partner with which the pair gains most
(Steinwart, Hush and Scovel, Training SVMs without offset, 2011), and moves both to the best point of the box.
If few instances can still change, only these instances are used. Exact moves (:func:`solve_free`) replace
pair steps if these converge slowly, or if the start is the solution of a similar problem with few free
instances (strictly inside the box): pair steps would first lose most of this solution.

If instances are very similar, pair steps are slow. Exact moves keep a set of free instances at their joint
optimum. Another instance moves, and the free instances follow, until the instance reaches the optimum and
becomes free, or until a free instance reaches a bound and leaves the set. This is the active-set method for
SVMs (Scheinberg 2006), started with no free instance and any dual variables in the box. The cost is low if
few instances are free, for example for a kernel of low rank. Therefore exact moves continue only if their
estimated cost is at most the cost of the pair steps so far.

Exact moves update the inverse of the kernel matrix of the free instances. Each loop writes one array, and
maxima are searched in separate loops, because LLVM then vectorises all loops (ten times as fast).
"""

from __future__ import annotations

from math import log
from typing import NamedTuple

import numpy as np

from lmbm_torch.kernels.dual.records import NEGLIGIBLE, Box
from lmbm_torch.kernels.jit import finite, finite_part

BLOCK = 64
# Lower limit for curvatures: an instance with kernel value 0 has curvature 0, and its dual goes to a bound.
TINY = 1e-30
# Below this share of remaining curvature, an instance counts as a combination of the free instances.
PARALLEL = 1e-6
# Largest number of free instances in exact moves.
MOST = 1024
# Number of free instances at which the cost is first estimated; it is estimated again at each doubling.
PROBED = 16
# Remaining share of curvature that the estimate of the cost assumes at the end of exact moves.
EXPLAINED = 0.01
# Cost of a pair step in multiplications for each instance.
PAIR = 5
# Exact moves continue if the pair steps have cost at least this share of the estimated cost.
PROMISE = 0.2
# A 2 × 2 determinant below this share of the product of the diagonal counts as zero.
SINGULAR = 1e-10
# Number of steps between two checks of the duality gap.
CHECKED = 32
# Active instances are solved separately if they are at most this share of all instances.
NARROW = 0.7
# Exact moves are tried again when the cost of pair steps has grown by this factor.
IMPATIENCE = 3.0
# Cost granted to exact moves at the start, in pair steps for each instance.
HEAD_START = 2.0


@finite_part
def gap(box, shares):
    """Write each instance's part of the duality gap to ``shares``; return the duality gap."""
    coef, lower, upper, gradient, _linear = box
    for i in range(len(shares)):
        value = gradient[i]
        shares[i] = value * (coef[i] - (lower[i] if value > 0 else upper[i]))
    total = 0.0
    for i in range(len(shares)):
        total += shares[i]
    return total


@finite_part
def dual(box):
    """Return ½ βᵀ(linear − h) = linearᵀβ − ½ βᵀGβ."""
    total = 0.0
    for i in range(len(box.coef)):
        total += box.coef[i] * (box.linear[i] - box.gradient[i])
    return 0.5 * total


@finite_part
def padded(size):
    """Round ``size`` up to a multiple of the block size of :func:`largest`."""
    return (size + BLOCK - 1) // BLOCK * BLOCK


@finite_part
def largest(values):
    """Return the first position of the largest value; the length is a multiple of the block size.

    First the largest value of each block is computed, which LLVM vectorises; this takes a third of the time.
    """
    best, first = values[0], 0
    for start in range(0, len(values), BLOCK):
        block = values[start : start + BLOCK]
        most = block[0]
        for k in range(BLOCK):
            most = max(most, block[k])
        if most > best:
            best, first = most, start
    for place in range(first, first + BLOCK):
        if values[place] == best:
            return place
    return first


class Free(NamedTuple):
    """The free instances (strictly inside the box), and working memory, allocated by Python.

    Args:
        index: (most,), the free instances in the first ``count`` entries.
        is_free: (instances,), whether each instance is free.
        inverse: (most, most), inverse of the kernel matrix of the free instances.
        own: (instances,), curvature of each instance.
        left: (instances,), remaining curvature if the free instances follow a move of the instance.
        answer: (most,), change of the free instances if another instance moves by 1.
        some: (most,), scratch.
        slope: (instances,), change of gradients by the move.
        shares, other: (instances,), scratch.
        gains: (instances,), gains of moves, padded for :func:`largest`.
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
        """Create memory for ``instances`` instances."""
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


@finite_part
def solve_free(joint, box, free, tol, steps, spent):
    """Run exact moves until the gap is small, no move gains, or the cost is too high.

    The limit of the gap is relative to the current primal value, which may fall a hundredfold meanwhile.

    Args:
        joint: (instances, instances), G.
        box: the dual problem, changed in place.
        free: memory of the free instances.
        tol: duality gap at which to stop, relative to the primal value.
        steps: largest number of moves.
        spent: cost of the pair steps so far.

    Returns:
        The number of moves, and the estimated cost of all moves; 0 if the moves ended before an estimate.
    """
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


@finite_part
def _none_free(joint, free):
    for i in range(len(joint)):
        free.own[i] = free.left[i] = max(float(joint[i, i]), TINY)
        free.is_free[i] = False


@finite_part
def _estimated(free, count):
    """Estimate the cost of all moves from the mean share of curvature that ``count`` free instances leave.

    The estimate assumes that each further free instance reduces the remainder by the same factor, and that
    each instance moves once.
    """
    size = len(free.own)
    total = 0.0
    for i in range(size):
        total += max(free.left[i] / free.own[i], PARALLEL)
    left = total / size
    most = float(count)
    if left > EXPLAINED:
        most = min(count * log(EXPLAINED) / log(min(left, 0.999)), float(size))
    return size * (most * (0.5 * size + most) + PAIR * size)


@finite_part
def _best(box, free):
    """Return the instance whose move gains most; −1 if no move gains."""
    (coef, lower, upper, gradient, _linear), gains = box, free.gains
    for i in range(len(coef)):
        slope, own = gradient[i], max(free.left[i], PARALLEL * free.own[i])
        step = min(max(-slope / own, lower[i] - coef[i]), upper[i] - coef[i])
        gains[i] = 0.0 if free.is_free[i] else -step * (slope + 0.5 * step * own)
    k = largest(gains)
    return k if gains[k] > 0 else -1


@finite_part
def _answer(joint, free, count, k):
    """Compute how free instances and all gradients change if instance k moves by 1."""
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


@finite_part
def _subtract(joint, free, count, factors, values):
    """Subtract Σ_f factors_f joint_f over the rows f of free instances, four rows at a time."""
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


@finite_part
def _limit(box, free, count, k, wanted):
    """Return the possible step of k, and the free instance that reaches a bound first; −1 for none."""
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


@finite_part
def _move(box, free, count, k, step):
    (coef, lower, upper, gradient, _linear), answer, slope = box, free.answer, free.slope
    coef[k] = min(max(coef[k] + step, lower[k]), upper[k])
    for f in range(count):
        i = free.index[f]
        coef[i] = min(max(coef[i] - answer[f] * step, lower[i]), upper[i])
    for i in range(len(gradient)):
        gradient[i] += step * slope[i]


@finite_part
def _enter(free, count, k, own):
    """Make instance k free: add a row and a column to the inverse."""
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


@finite_part
def _leave(joint, free, count, first):
    """Remove a free instance from the inverse, and update the response to the current move."""
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


class Room(NamedTuple):
    """Working memory of a label, allocated by Python to shorten compilation.

    Args:
        shares: (instances,), each instance's part of the duality gap.
        index: (instances,), the active instances.
        joint: kernel values among active instances, as a flat array.
    """

    shares: np.ndarray
    index: np.ndarray
    joint: np.ndarray


@finite
def add_columns(joint, columns, scale):
    """Add Σ_c scale_c columns_c columns_cᵀ to ``joint`` in place; ``columns`` are (columns, instances)."""
    for i in range(len(joint)):
        row = joint[i]
        for c in range(len(columns)):
            column = columns[c]
            factor = row.dtype.type(scale[c] * column[i])
            for j in range(len(row)):
                row[j] += factor * column[j]


def solve_label(joint, box, tol, steps):
    """Run up to ``steps`` steps, until gap / primal value is at most ``tol``; return the number of steps.

    Args:
        joint: (instances, instances), G.
        box: the dual problem; ``coef`` and ``gradient`` are changed in place.
    """
    size = len(box.coef)
    # Memory is allocated only once, because the system clears new memory, which took a third of the time.
    among = np.empty(int(NARROW * size) ** 2, joint.dtype)
    room = Room(np.empty(size), np.empty(size, np.int64), among)
    return _solve_label(joint, box, room, Free.of(size), bool(box.coef.any()), tol, steps)


@finite
def _solve_label(joint, box, room, free, is_begun, tol, steps):
    made, size = 0, len(box.coef)
    spent, credit = 0.0, HEAD_START * PAIR * size * size
    patience = 0.0 if is_begun else float(PAIR * size * size)
    while made < steps:
        open_gap = gap(box, room.shares)
        primal = open_gap + dual(box)
        if open_gap <= tol * primal:
            break
        # The goal is computed again in each round, because the primal value falls.
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


@finite_part
def _solve_some(joint, room, box, count, steps, goal):
    """Run steps among the active instances, with a copy of their kernel values; then update all gradients."""
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


@finite_part
def _gathered(values, index):
    # A loop instead of values[index], for which numba would compile all kinds of indices.
    found = np.empty(len(index))
    for a in range(len(index)):
        found[a] = values[index[a]]
    return found


@finite_part
def _pair_steps(joint, box, steps, goal):
    """Run pair steps on the instance of largest gain and its best partner; return the number of steps."""
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
        # If there is only one instance, the second variable of the pair is fixed.
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


@finite_part
def _active(box, room, gap):
    """Collect the instances strictly inside the box, or with a part of the gap above a threshold."""
    least, count = NEGLIGIBLE * gap / len(room.shares), 0
    for i in range(len(room.shares)):
        if room.shares[i] > least or box.lower[i] < box.coef[i] < box.upper[i]:
            room.index[count] = i
            count += 1
    return count


@finite_part
def _round(gradient, slope):
    """Round the gradient to single precision, in a separate loop, which halves the time."""
    for i in range(len(slope)):
        slope[i] = gradient[i]


@finite_part
def _gains(slope, down, up, curvature, inverse, gains):
    """Compute by how much a step on each single instance raises the dual."""
    # Multiply by the inverse curvature, because divisions took a third of the time.
    for i in range(len(down)):
        step = min(max(-slope[i] * inverse[i], down[i]), up[i])
        gains[i] = -step * (slope[i] + np.float32(0.5) * step * curvature[i])


@finite_part
def _partner_gains(row, slope_i, own, slope, down, up, curvature, gains):
    """Compute by how much each partner's step raises the dual if the instance of ``row`` stays optimal."""
    ratio, inverse = slope_i / own, np.float32(1) / own
    for j in range(len(down)):
        similar = np.float32(row[j])
        left = max(curvature[j] - similar * similar * inverse, np.float32(PARALLEL) * curvature[j])
        slope_j = slope[j] - ratio * similar
        step = min(max(-slope_j / left, down[j]), up[j])
        gains[j] = -step * (slope_j + np.float32(0.5) * step * left)


@finite_part
def _best_steps(first, second, similar):
    """Return the steps that minimise a quadratic of two variables, each (slope, curvature, down, up)."""
    slope_i, own_i, down_i, up_i = first
    slope_j, own_j, down_j, up_j = second
    area = own_i * own_j - similar * similar
    if area > SINGULAR * own_i * own_j:
        step_i = (slope_j * similar - slope_i * own_j) / area
        step_j = (slope_i * similar - slope_j * own_i) / area
        if down_i <= step_i <= up_i and down_j <= step_j <= up_j:
            return step_i, step_j
    # If the minimum is not inside the box, it is on one of the four edges: take the best edge.
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


@finite_part
def _add(gradient, row, step):
    for k in range(len(gradient)):
        gradient[k] += step * row[k]


@finite_part
def _add_two(gradient, first, step, second, other):
    for k in range(len(gradient)):
        gradient[k] += step * first[k] + other * second[k]
