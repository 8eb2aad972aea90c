"""ST."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from lmbm_torch.kernels.dual.compiled.random import random_state, shuffle
from lmbm_torch.kernels.dual.compiled.rows import by_output, readable, row_add_block, row_dot_block
from lmbm_torch.kernels.dual.plain.structural import STEPS_PER_VISIT
from lmbm_torch.kernels.jit import SUMS, compiled, njit, part
from lmbm_torch.kernels.threads import stoppable

# A visit of an example ends when its gap has fallen to this share.
ENOUGH = 0.1
# The first of so many sweeps is over all examples; the others leave out those whose gap was below this share
# of the mean gap.
SWEEPS_PER_ROUND = 10
NEGLIGIBLE = 0.1
# Planes of an example whose inner products are kept; those of more are computed anew in every visit.
MOST_KEPT = 64


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


class Products(NamedTuple):
    """Inner products of each example's planes, couplings divided by their penalty.

    Those of example l are kept, once they are known, as a flat matrix from ``start[l]`` up to
    ``start[l + 1]``; there is no room for those of examples of many planes.
    """

    start: np.ndarray
    value: np.ndarray
    known: np.ndarray


class Scratch(NamedTuple):
    """Working memory of a visit, made by Python: that spares its compilation.

    The example's scores and what its rows are to be given; the planes that steps are taken between, their
    values, and how much dual each was given; a plane's image under the weights' metric, and room for inner
    products.
    """

    scores: np.ndarray
    change: np.ndarray
    members: np.ndarray
    values: np.ndarray
    given: np.ndarray
    image: np.ndarray
    products: np.ndarray


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
    scratch.given[:count] = 0.0
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
def dense_place(index, base):
    """Where an entry of a plane is in its example's dense vector, couplings behind the ``base`` scores."""
    return index if index >= 0 else base - 1 - index


@part
def map_plane(planes, p, example, penalty, image):
    """Write plane p's image under the weights' metric, into zeros."""
    base = example.rows * example.outputs
    for e in range(planes.start[p], planes.start[p + 1]):
        at, value = dense_place(planes.index[e], base), planes.value[e]
        if at >= base:
            image[at] = value / penalty
            continue
        row, output = at // example.outputs, at % example.outputs
        for other in range(example.rows):
            image[other * example.outputs + output] += value * example.gram[row * example.rows + other]


@part(fastmath=SUMS)
def multiply(planes, first, last, example, penalty, image, products):
    """Inner products of the planes from ``first`` up to ``last``, into a flat matrix."""
    base, count = example.rows * example.outputs, last - first
    for q in range(count):
        map_plane(planes, first + q, example, penalty, image)
        for p in range(q + 1):
            total = 0.0
            for e in range(planes.start[first + p], planes.start[first + p + 1]):
                total += planes.value[e] * image[dense_place(planes.index[e], base)]
            products[p * count + q] = products[q * count + p] = total
        image[:base] = 0.0
        for e in range(planes.start[first + q], planes.start[first + q + 1]):
            image[dense_place(planes.index[e], base)] = 0.0


@part
def products_of(planes, each, example, penalty, products, scratch):
    """The inner products of example ``each``'s planes, a flat matrix, computed if need be."""
    first, last = planes.first[each], planes.first[each + 1]
    start, end = products.start[each], products.start[each + 1]
    if end == start:
        multiply(planes, first, last, example, penalty, scratch.image, scratch.products)
        return scratch.products
    kept = products.value[start:end]
    if not products.known[each]:
        multiply(planes, first, last, example, penalty, scratch.image, kept)
        products.known[each] = True
    return kept


@part
def visit(planes, each, example, penalty, dual_coef, couplings, products, scratch):
    """Pairwise steps on one example's planes; returns the gap that was found and whether anything moved."""
    first, size = planes.first[each], planes.first[each + 1] - planes.first[each]
    count = members(planes, first, first + size, dual_coef, couplings, scratch)
    best, worst, gap = extremes(count, dual_coef, scratch)
    found = gap
    # An example of no weight has no duals at all.
    if worst < 0 or scratch.values[best] <= scratch.values[worst]:
        return found, False
    inner = products_of(planes, each, example, penalty, products, scratch)
    for _ in range(STEPS_PER_VISIT):
        rise = scratch.values[best] - scratch.values[worst]
        if rise <= 0.0:
            break
        up, down = scratch.members[best], scratch.members[worst]
        row, other = (up - first) * size, (down - first) * size
        squares = inner[row + up - first] + inner[other + down - first]
        square = squares - 2 * inner[row + down - first]
        longest = dual_coef[down]
        # Of planes that are alike but for round-off.
        step = min(longest, rise / square) if square > 1e-12 * squares else longest
        dual_coef[up] += step
        dual_coef[down] = dual_coef[down] - step if step < longest else 0.0
        scratch.given[best] += step
        scratch.given[worst] -= step
        for m in range(count):
            p = scratch.members[m] - first
            scratch.values[m] -= step * (inner[row + p] - inner[other + p])
        best, worst, gap = extremes(count, dual_coef, scratch)
        if gap <= ENOUGH * found:
            break
    give(planes, count, example, penalty, couplings, scratch)
    return found, True


@part
def give(planes, count, example, penalty, couplings, scratch):
    """Add the planes, by the dual that each was given, to the couplings and to the scores' change."""
    base = example.rows * example.outputs
    for m in range(count):
        given = scratch.given[m]
        if given == 0.0:
            continue
        p = scratch.members[m]
        for e in range(planes.start[p], planes.start[p + 1]):
            at = dense_place(planes.index[e], base)
            if at >= base:
                couplings[at - base] += given * planes.value[e] / penalty
            else:
                scratch.change[at] += given * planes.value[e]


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
    squares = np.where(np.diff(first) <= MOST_KEPT, np.diff(first) ** 2, 0)
    starts = np.concatenate([[0], squares.cumsum()])
    products = Products(starts, np.empty(starts[-1]), np.zeros(problem.num_examples, np.bool_))
    longest, most = np.diff(problem.start).max() * problem.num_outputs, np.diff(first).max()
    scratch = Scratch(
        scores=np.empty(longest),
        change=np.empty(longest),
        members=np.empty(most, np.int64),
        values=np.empty(most),
        given=np.empty(most),
        image=np.zeros(longest + len(weights.couplings)),
        products=np.empty(most**2 if most > MOST_KEPT else 0),
    )
    changed = (features, weights.couplings, dual_coef, products)
    visited = examples.copy(), np.zeros(problem.num_examples)
    until = target, max_sweeps, seed
    made = stoppable(lambda stop: _sweeps(data, held, *changed, scratch, *visited, *until, stop))
    if not is_dense:
        weights.features[:] = features.T
    return made


@njit(nogil=True, cache=True)
def _sweeps(
    data,
    planes,
    stored,
    couplings,
    dual_coef,
    products,
    scratch,
    order,
    found,
    target,
    max_sweeps,
    seed,
    stop,
):
    rows, outputs, start, gram, gram_start, penalty = data
    weights = by_output(rows, stored)
    first, state, count = planes.first, random_state(seed), 0
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
                planes, each, example, penalty, dual_coef, couplings, products, scratch
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


def products(planes, first, unary, couplings):
    """⟨w, ψ⟩ of each plane, (planes,)."""
    return _products(planes.start, planes.index, planes.value, first, unary, couplings)


def sums(planes, first, dual_coef, size, num_couplings):
    """Σ_p α_p ψ_p: of the rows' outputs (size,), then of couplings (num_couplings,)."""
    total = np.zeros(size + num_couplings)
    _add_planes(planes.start, planes.index, planes.value, first, dual_coef, total[:size], total[size:])
    return total


def entries(planes, chosen, start):
    """Index and value of the entries of the ``chosen`` planes, which begin at ``start`` there."""
    index, value = np.empty(start[-1], planes.index.dtype), np.empty(start[-1])
    _copy_entries(planes.start, planes.index, planes.value, chosen, start, index, value)
    return index, value


@compiled
def _products(start, index, value, first, unary, couplings):
    found = np.empty(len(first))
    for p in range(len(first)):
        total = 0.0
        for entry in range(start[p], start[p + 1]):
            place = index[entry]
            total += value[entry] * (couplings[-1 - place] if place < 0 else unary[first[p] + place])
        found[p] = total
    return found


@compiled
def _add_planes(start, index, value, first, dual_coef, unary, couplings):
    for p in range(len(first)):
        dual = dual_coef[p]
        # Most planes that are remembered have none.
        if dual == 0:
            continue
        for entry in range(start[p], start[p + 1]):
            place = index[entry]
            if place < 0:
                couplings[-1 - place] += dual * value[entry]
            else:
                unary[first[p] + place] += dual * value[entry]


@compiled
def _copy_entries(start, index, value, chosen, start_of, index_of, value_of):
    for c in range(len(chosen)):
        entry = start[chosen[c]]
        for target in range(start_of[c], start_of[c + 1]):
            index_of[target], value_of[target] = index[entry], value[entry]
            entry += 1
