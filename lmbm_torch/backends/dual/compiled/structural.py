"""Block-coordinate steps on the cutting planes of a structural SVM, compiled for the CPU.

Arrays are as :class:`lmbm_torch.solvers.structural.problems.StructuralProblem` and ``CuttingPlanes`` describe
them. A visit of an example costs two passes over its features, so it makes several steps with the scores that
it has computed.

Weights are stored by output for dense rows, so that each score is one long inner product, and by feature for
CSR rows, so that all weights of an entry lie together (measured per visit: dense, 294 features and 6 outputs,
0.36 against 1.6 µs; CSR, 75 of 47,000 entries and 30 outputs, 3.9 against 14.6 µs).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from lmbm_torch.backends.dual.compiled.random import random_state, shuffle
from lmbm_torch.backends.dual.compiled.rows import (
    by_output,
    readable,
    row_add_block,
    row_dot_block,
)
from lmbm_torch.backends.dual.plain.structural import STEPS_PER_VISIT
from lmbm_torch.backends.jit import SUMS, njit, part
from lmbm_torch.backends.threads import stoppable

# A visit of an example ends when its gap has fallen to this share.
ENOUGH = 0.1
# The first of so many sweeps is over all examples; the others leave out those whose gap was below this share
# of the mean gap.
SWEEPS_PER_ROUND = 10
NEGLIGIBLE = 0.1


class Examples(NamedTuple):
    """All examples: the rows of example l are those from ``start[l]`` up to ``start[l + 1]``."""

    rows: Any
    outputs: int
    start: np.ndarray
    gram: np.ndarray
    gram_start: np.ndarray
    penalty: float


class Planes(NamedTuple):
    """The planes of all examples; example l has those from ``first[l]`` up to ``first[l + 1]``."""

    first: np.ndarray
    start: np.ndarray
    index: np.ndarray
    value: np.ndarray
    loss: np.ndarray


class Scratch(NamedTuple):
    """Working memory of a visit.

    The example's scores and what its rows are to be given; the planes that steps are taken between, and their
    values; a step's direction, dense, and where it may not be zero.
    """

    scores: np.ndarray
    change: np.ndarray
    members: np.ndarray
    values: np.ndarray
    direction: np.ndarray
    touched: np.ndarray


class Example(NamedTuple):
    """One example's rows: how many, with how many outputs each, and their inner products, flat."""

    rows: int
    outputs: int
    gram: np.ndarray


@part(fastmath=SUMS)
def evaluate(planes, p, couplings, scores):
    """loss − ⟨w, ψ⟩ of plane p."""
    value = planes.loss[p]
    for e in range(planes.start[p], planes.start[p + 1]):
        index = planes.index[e]
        value -= planes.value[e] * (scores[index] if index >= 0 else couplings[-1 - index])
    return value


@part
def members(planes, first, last, dual_coef, couplings, scratch):
    """Collect the planes that have a dual, and the one of largest value; returns how many there are."""
    count = 0
    best, largest, best_counts = first, -np.inf, False
    for p in range(first, last):
        value = evaluate(planes, p, couplings, scratch.scores)
        has_dual = dual_coef[p] > 0.0
        if value > largest:
            best, largest, best_counts = p, value, has_dual
        if has_dual:
            scratch.members[count], scratch.values[count] = p, value
            count += 1
    if not best_counts:
        scratch.members[count], scratch.values[count] = best, largest
        count += 1
    return count


@part
def extremes(count, dual_coef, scratch):
    """The members of largest value, and of least value with a dual; and the gap between them all."""
    best, worst = 0, -1
    total, weighted = 0.0, 0.0
    for m in range(count):
        dual, value = dual_coef[scratch.members[m]], scratch.values[m]
        total += dual
        weighted += dual * value
        if value > scratch.values[best]:
            best = m
        if dual > 0.0 and (worst < 0 or value < scratch.values[worst]):
            worst = m
    return best, worst, total * scratch.values[best] - weighted


@part
def collect_direction(planes, best, worst, base, scratch):
    """direction = ψ_best − ψ_worst; returns how many of its entries, listed in ``touched``, are not zero."""
    count = 0
    for side in range(2):
        p = best if side == 0 else worst
        sign = 1.0 if side == 0 else -1.0
        for e in range(planes.start[p], planes.start[p + 1]):
            place = planes.index[e] if planes.index[e] >= 0 else base - 1 - planes.index[e]
            if scratch.direction[place] == 0.0:
                scratch.touched[count] = place
                count += 1
            scratch.direction[place] += sign * planes.value[e]
    kept = 0
    for t in range(count):
        place = scratch.touched[t]
        # An entry that was cancelled and written once more is listed twice: only its first listing counts.
        if scratch.direction[place] != 0.0:
            scratch.touched[kept] = place
            kept += 1
    return kept


@part
def curvature(example, penalty, count, scratch):
    """‖ψ_best − ψ_worst‖² among the weights, couplings divided by their penalty."""
    size = example.rows * example.outputs
    total = 0.0
    for a in range(count):
        place = scratch.touched[a]
        value = scratch.direction[place]
        if place >= size:
            total += value * value / penalty
            continue
        row, output = place // example.outputs, place % example.outputs
        for other in range(example.rows):
            beside = scratch.direction[other * example.outputs + output]
            total += value * beside * example.gram[row * example.rows + other]
    return total


@part
def move(example, penalty, count, step, couplings, scratch):
    """Take the step in the example's scores, in the couplings, and in what its rows are to be given."""
    size = example.rows * example.outputs
    for a in range(count):
        place = scratch.touched[a]
        amount = step * scratch.direction[place]
        scratch.direction[place] = 0.0
        if place >= size:
            couplings[place - size] += amount / penalty
            continue
        scratch.change[place] += amount
        row, output = place // example.outputs, place % example.outputs
        for other in range(example.rows):
            scratch.scores[other * example.outputs + output] += (
                amount * example.gram[row * example.rows + other]
            )


@part
def visit(planes, first, last, example, penalty, dual_coef, couplings, scratch):
    """Pairwise steps on one example's planes; returns the gap that was found and whether anything moved."""
    count = members(planes, first, last, dual_coef, couplings, scratch)
    best, worst, gap = extremes(count, dual_coef, scratch)
    found, moved = gap, False
    base = example.rows * example.outputs
    for _ in range(STEPS_PER_VISIT):
        # An example of no weight has no duals at all.
        if worst < 0 or scratch.values[best] <= scratch.values[worst]:
            break
        rise = scratch.values[best] - scratch.values[worst]
        up, down = scratch.members[best], scratch.members[worst]
        length = collect_direction(planes, up, down, base, scratch)
        square = curvature(example, penalty, length, scratch)
        longest = dual_coef[down]
        step = min(longest, rise / square) if square > 0.0 else longest
        move(example, penalty, length, step, couplings, scratch)
        dual_coef[up] += step
        dual_coef[down] = dual_coef[down] - step if step < longest else 0.0
        moved = True
        for m in range(count):
            scratch.values[m] = evaluate(planes, scratch.members[m], couplings, scratch.scores)
        best, worst, gap = extremes(count, dual_coef, scratch)
        if gap <= ENOUGH * found:
            break
    return found, moved


@part(fastmath=SUMS)
def read_scores(rows, first, example, weights, scores):
    """The scores of the example's rows, the first of which is ``first``."""
    for t in range(example.rows):
        fields = scores[t * example.outputs : (t + 1) * example.outputs]
        # As an assignment of arrays, numba would compile what to say of unequal lengths, for a second.
        for k in range(len(fields)):
            fields[k] = weights[-1, k]
        row_dot_block(rows, first + t, weights, fields)


@part(fastmath=SUMS)
def add_change(rows, first, example, change, weights):
    """Add the change of the scores of the example's rows, the first of which is ``first``, to the weights."""
    for t in range(example.rows):
        steps = change[t * example.outputs : (t + 1) * example.outputs]
        row_add_block(rows, first + t, steps, weights)
        for k in range(len(steps)):
            weights[-1, k] += steps[k]


@part
def longest_part(bounds):
    """The largest difference of neighbours."""
    longest = 0
    for e in range(len(bounds) - 1):
        longest = max(longest, bounds[e + 1] - bounds[e])
    return longest


def sweeps(problem, planes, weights, dual_coef, examples, target, max_sweeps, seed):
    """Up to ``max_sweeps`` random sweeps, or until the gaps found in one of all examples sum to ``target``.

    The arrays of ``weights``, features (outputs, features + 1) and couplings, and ``dual_coef`` change in
    place. After a sweep over all examples, the next ones leave out those whose gap hardly counted. Returns
    the number of sweeps made.
    """
    rows, is_dense = readable(problem.features), isinstance(problem.features, np.ndarray)
    data = Examples(
        *(rows, problem.num_outputs, problem.start, problem.gram, problem.gram_start),
        problem.coupling_penalty,
    )
    first = np.searchsorted(planes.example, np.arange(problem.num_examples + 1))
    held = Planes(first, planes.start, planes.index, planes.value, planes.loss)
    features = weights.features if is_dense else np.ascontiguousarray(weights.features.T)
    changed = (features, weights.couplings, dual_coef)
    made = stoppable(lambda stop: _sweeps(data, held, *changed, examples, target, max_sweeps, seed, stop))
    if not is_dense:
        weights.features[:] = features.T
    return made


@njit(nogil=True, cache=True)
def _sweeps(data, planes, stored, couplings, dual_coef, examples, target, max_sweeps, seed, stop):
    rows, outputs, start, gram, gram_start, penalty = data
    weights = by_output(rows, stored)
    first, plane_start = planes.first, planes.start
    longest, widest, most = longest_part(start) * outputs, longest_part(plane_start), longest_part(first)
    scratch = Scratch(
        np.empty(longest),
        np.empty(longest),
        np.empty(most, np.int64),
        np.empty(most),
        np.zeros(longest + len(couplings)),
        np.empty(2 * widest, np.int64),
    )
    state = random_state(seed)
    order = examples.copy()
    found = np.zeros(len(first) - 1)
    count = 0
    for made in range(max_sweeps):
        if stop[0]:
            return made
        whole = made % SWEEPS_PER_ROUND == 0
        if whole:
            count = len(order)
        shuffle(order, count, state)
        gap = 0.0
        for place in range(count):
            if stop[0]:
                return made
            each = order[place]
            if first[each + 1] - first[each] < 2:
                continue
            size = start[each + 1] - start[each]
            example = Example(size, outputs, gram[gram_start[each] : gram_start[each + 1]])
            read_scores(rows, start[each], example, weights, scratch.scores)
            scratch.change[: size * outputs] = 0.0
            found[each], moved = visit(
                planes, first[each], first[each + 1], example, penalty, dual_coef, couplings, scratch
            )
            gap += found[each]
            if moved:
                add_change(rows, start[each], example, scratch.change, weights)
        if whole and gap <= target:
            return made + 1
        kept = 0
        for place in range(count):
            each = order[place]
            if found[each] > NEGLIGIBLE * gap / count:
                order[place], order[kept] = order[kept], order[place]
                kept += 1
        count = kept
    return max_sweeps
