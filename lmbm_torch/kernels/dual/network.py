"""Dual solvers for the problems of all labels, which share the features.

Coordinate descent has two phases, both with exact steps on the same dual variables (Hsieh et al. 2008):

* :func:`shared_sweeps` updates an instance for a whole block of labels at once. The weights of a feature for
  all labels are contiguous. This is three times as fast per step as one label after another, as long as
  nearly all instances matter for every label.
* :func:`solve_labels` solves each label on the few active instances, by sweeps in random order with
  shrinking. When a sweep hardly changes the set of free dual variables (not at a bound), conjugate gradients
  optimise the free variables until the first reaches a bound. Coordinate descent finds the free variables in
  a few sweeps, but optimises them slowly; conjugate gradients optimise them fast.

:func:`gradient_sweeps` runs exponentiated-gradient steps. ``problems`` is a
:class:`lmbm_torch.solvers.networks.problems.LabelProblems`, with features converted for
:mod:`~lmbm_torch.kernels.dual.rows`.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np

from lmbm_torch.kernels.dual.random import random_state, shuffle
from lmbm_torch.kernels.dual.rows import readable, row_add, row_add_block, row_dot, row_dot_block, row_support
from lmbm_torch.kernels.jit import SUMS, njit, part
from lmbm_torch.kernels.threads import share, stoppable

# If a smaller share of the free variables reaches or leaves a bound in a sweep, their set counts as found.
SETTLED = 0.001
# Smallest number of sweeps over active instances between two passes over all instances; below, the share of
# the violation at which the next pass comes earlier.
SWEEPS_PER_ROUND = 20
ROUND_TARGET = 0.1
MAX_CONJUGATE_STEPS = 30
# Largest |log-odds| of a dual variable, which double precision still distinguishes from the bounds.
LIMIT = 30.0
# A step is accepted if it gains at least this share of what the gradient promises.
ENOUGH = 0.25
# Smaller steps of the log-odds are round-off, and end the halving of steps.
LEAST_STEP = 1e-12


class Problems(NamedTuple):
    """The problems of all labels, which share the features, for compiled code."""

    rows: Any
    context: np.ndarray
    shared: np.ndarray
    own: np.ndarray
    spins: np.ndarray
    upper: np.ndarray
    square_norm: np.ndarray
    margin: float


def compilable(problems: Any) -> Problems:
    """Convert the solver's problems to a record that compiled code can read."""
    return Problems(readable(problems.features), *(getattr(problems, name) for name in Problems._fields[1:]))


class Label(NamedTuple):
    """The problem of a label: min ½‖w‖² + Σ_i upper_i [margin − spins_i ⟨w, (features, context)_i⟩]_+."""

    rows: Any
    context: np.ndarray
    shared: int
    own: int
    own_end: int
    spins: np.ndarray
    upper: np.ndarray
    curvature: np.ndarray
    margin: float


def one_label(problems: Problems, k: int) -> Label:
    """Return the problem of label k."""
    rows, context, shared, own, spins, upper, square_norm, margin = problems
    curvature = square_norm + (shared[k] + own[k + 1] - own[k])
    return Label(rows, context, shared[k], own[k], own[k + 1], spins[k], upper, curvature, margin)


class Scratch(NamedTuple):
    """Working memory of :func:`face_step`, allocated by Python once per label to shorten compilation."""

    free: np.ndarray
    support: np.ndarray
    seen: np.ndarray
    residual: np.ndarray
    direction: np.ndarray
    image: np.ndarray

    @classmethod
    def of(cls, instances: int, columns: int) -> Scratch:
        """Allocate memory for numbers of instances and of weights."""
        return cls(
            np.empty(instances, np.int64),
            np.empty(columns, np.int64),
            np.zeros(columns, np.bool_),
            np.empty(instances),
            np.empty(instances),
            np.zeros(columns),
        )


@part(fastmath=SUMS)
def field(label, i, weights):
    """Return z_i, the local field of instance i at ``weights`` (of features, then of the context)."""
    context = label.context[i]
    beyond = weights[len(weights) - len(context) :]
    total = row_dot(label.rows, i, weights)
    for c in range(label.shared):
        total += context[c] * beyond[c]
    for c in range(label.own, label.own_end):
        total += context[c] * beyond[c]
    return total


@part(fastmath=SUMS)
def add_instance(label, i, scale, weights):
    """Add scale · (features, context) of instance i to the weights."""
    context = label.context[i]
    beyond = weights[len(weights) - len(context) :]
    row_add(label.rows, i, scale, weights)
    for c in range(label.shared):
        beyond[c] += scale * context[c]
    for c in range(label.own, label.own_end):
        beyond[c] += scale * context[c]


@part(fastmath=SUMS)
def survey(label, weights, dual, active):
    """Check all instances, and write the active instances to the front of ``active``.

    Returns:
        Primal value, dual value, largest violation, and the number of active instances.
    """
    primal = value = violation = 0.0
    count = 0
    behind = label.spins.shape[0]
    for i in range(label.spins.shape[0]):
        gradient = label.spins[i] * field(label, i, weights) - label.margin
        upper = label.upper[i] if label.spins[i] != 0 else 0.0
        if gradient < 0.0:
            primal -= upper * gradient
        value += label.margin * dual[i]
        if (dual[i] == 0.0 and gradient >= 0.0) or (dual[i] == upper and gradient <= 0.0):
            behind -= 1
            active[behind] = i
        else:
            active[count] = i
            count += 1
            violation = max(violation, abs(gradient))
    norm = 0.0
    for d in range(weights.shape[0]):
        norm += weights[d] * weights[d]
    return primal + 0.5 * norm, value - 0.5 * norm, violation, count


@part(fastmath=SUMS)
def sweep(label, weights, dual, active, count, high, low):
    """Run one sweep over ``active[:count]`` with shrinking.

    Instances at a bound whose gradient points outwards, beyond the extreme gradients ``high`` and ``low`` of
    the last sweep, are moved behind the active instances.

    Returns:
        The number of active instances, the extreme projected gradients, the number of dual variables that
        reached or left a bound, and the number of free variables.
    """
    largest, smallest = -np.inf, np.inf
    moved = free = 0
    a = 0
    while a < count:
        i = active[a]
        upper = label.upper[i]
        gradient = label.spins[i] * field(label, i, weights) - label.margin
        old = dual[i]
        at_rest = (old == 0.0 and gradient > 0.0) or (old == upper and gradient < 0.0)
        if at_rest and (gradient > high or gradient < low):
            count -= 1
            active[a], active[count] = active[count], active[a]
            continue
        a += 1
        if at_rest:
            largest, smallest = max(largest, 0.0), min(smallest, 0.0)
            continue
        largest, smallest = max(largest, gradient), min(smallest, gradient)
        new = min(max(old - gradient / label.curvature[i], 0.0), upper)
        if new != old:
            dual[i] = new
            add_instance(label, i, (new - old) * label.spins[i], weights)
        is_free = 0.0 < new < upper
        free += is_free
        moved += is_free != (0.0 < old < upper)
    return count, largest, smallest, moved, free


@part
def free_among(label, dual, active, count, free):
    """Write the active instances that are strictly inside the box to ``free``; return their number."""
    size = 0
    for a in range(count):
        if 0.0 < dual[active[a]] < label.upper[active[a]]:
            free[size] = active[a]
            size += 1
    return size


@part
def touched_columns(label, columns, scratch, size):
    """Collect the weights that free instances use; a conjugate-gradient step changes only these."""
    width = row_support(label.rows, scratch.free, size, scratch.seen, scratch.support)
    offset = columns - label.context.shape[1]
    for c in range(label.shared):
        scratch.support[width] = offset + c
        width += 1
    for c in range(label.own, label.own_end):
        scratch.support[width] = offset + c
        width += 1
    return width


@part
def longest_step(label, dual, direction, free, size, step):
    """Return the longest step in the box up to ``step``, and the limiting dual variable (or −1)."""
    stopper = -1
    for a in range(size):
        i = free[a]
        room = step
        if direction[a] > 0.0:
            room = (label.upper[i] - dual[i]) / direction[a]
        elif direction[a] < 0.0:
            room = -dual[i] / direction[a]
        if room < step:
            step = room
            stopper = a
    return step, stopper


@part(fastmath=SUMS)
def face_step(label, weights, dual, active, count, scratch, stop):
    """Run conjugate gradients on the free dual variables among ``active[:count]``, up to the first bound."""
    free, support, _, residual, direction, image = scratch
    size = free_among(label, dual, active, count, free)
    width = touched_columns(label, weights.shape[0], scratch, size)
    square = 0.0
    for a in range(size):
        residual[a] = label.margin - label.spins[free[a]] * field(label, free[a], weights)
        direction[a] = residual[a]
        square += residual[a] * residual[a]
    enough = 1e-4 * square
    for _ in range(MAX_CONJUGATE_STEPS):
        if square <= enough or stop[0]:
            return
        for f in range(width):
            image[support[f]] = 0.0
        for a in range(size):
            add_instance(label, free[a], direction[a] * label.spins[free[a]], image)
        curvature = 0.0
        for f in range(width):
            curvature += image[support[f]] * image[support[f]]
        if curvature <= 1e-14 * square:
            return
        step, stopper = longest_step(label, dual, direction, free, size, square / curvature)
        for a in range(size):
            dual[free[a]] = min(max(dual[free[a]] + step * direction[a], 0.0), label.upper[free[a]])
        for f in range(width):
            weights[support[f]] += step * image[support[f]]
        if stopper >= 0:
            i = free[stopper]
            dual[i] = label.upper[i] if direction[stopper] > 0.0 else 0.0
            return
        last_square = square
        square = 0.0
        for a in range(size):
            residual[a] -= step * label.spins[free[a]] * field(label, free[a], image)
            square += residual[a] * residual[a]
        for a in range(size):
            direction[a] = residual[a] + square / last_square * direction[a]


@njit(nogil=True, cache=True)
def solve_label(label, weights, dual, active, scratch, tol, rounds, seed, stride, stop):
    """Improve the dual variables of a label by up to ``rounds`` rounds, or until the relative gap is ``tol``.

    Round r draws random numbers with the seed ``seed + r · stride``; rounds may be split into several calls.
    ``weights`` and ``dual`` are changed in place; ``active`` (instances,) and ``scratch`` are working memory.

    Returns:
        Primal value, dual value and number of rounds; the rounds end early if ``stop`` becomes true.
    """
    instances = label.spins.shape[0]
    done = 0
    while True:
        primal, value, violation, count = survey(label, weights, dual, active)
        if done == rounds or primal - value <= tol * primal or stop[0]:
            return primal, value, done
        state = random_state(seed + done * stride)
        done += 1
        high, low = np.inf, -np.inf
        made = visits = 0
        while made < SWEEPS_PER_ROUND or visits < instances:
            made += 1
            visits += count
            shuffle(active, count, state)
            count, largest, smallest, moved, free = sweep(label, weights, dual, active, count, high, low)
            if max(largest, -smallest) <= ROUND_TARGET * violation or stop[0]:
                break
            high = largest if largest > 0.0 else np.inf
            low = smallest if smallest < 0.0 else -np.inf
            if free > 0 and moved <= SETTLED * free:
                face_step(label, weights, dual, active, count, scratch, stop)


def solve_labels(problems, labels, weights, duals, tol, rounds, seed):
    """Improve each of ``labels`` by up to ``rounds`` rounds, or until the relative gap is ``tol``.

    ``weights`` and ``duals`` are changed in place.

    Returns:
        Primal values, dual values and numbers of rounds, each (labels,).
    """
    primal, value = np.empty(len(labels)), np.empty(len(labels))
    made = np.empty(len(labels), np.int64)

    compiled, (count, instances) = compilable(problems), problems.spins.shape

    def solve(j, stop):
        k = labels[j]
        own_weights = weights[:, k].copy()
        room = np.empty(instances, np.int64), Scratch.of(instances, len(own_weights))
        rounds_from = tol, rounds, seed * count + k, count
        primal[j], value[j], made[j] = solve_label(
            one_label(compiled, k), own_weights, duals[k], *room, *rounds_from, stop
        )
        weights[:, k] = own_weights

    stoppable(lambda stop: share(range(len(labels)), partial(solve, stop=stop)))
    return primal, value, made


@njit(nogil=True, cache=True, fastmath=SUMS)
def sweep_block(problems, first, last, weights, duals, sweeps, seed, stop):
    """Run sweeps that update each instance for all labels from ``first`` up to ``last``."""
    rows, context, shared, own, spins, upper, square_norm, margin = problems
    block, size = weights[:, first:last], last - first
    beyond = block[len(weights) - context.shape[1] :]
    # shared[k], the number of columns for label k, never decreases: the last labels use a column, if any do.
    seen_from, label = np.empty(shared[last - 1], np.int64), first
    for c in range(len(seen_from)):
        while shared[label] <= c:
            label += 1
        seen_from[c] = label - first
    fields, steps = np.empty(size), np.empty(size)
    state = random_state(seed)
    order = np.arange(spins.shape[1])
    for _ in range(sweeps):
        shuffle(order, len(order), state)
        for i in order:
            if stop[0]:
                return
            around = context[i]
            fields[:] = 0.0
            row_dot_block(rows, i, block, fields)
            for c in range(len(seen_from)):
                weight = beyond[c]
                for k in range(seen_from[c], size):
                    fields[k] += around[c] * weight[k]
            any_step = False
            for k in range(size):
                label = first + k
                for c in range(own[label], own[label + 1]):
                    fields[k] += around[c] * beyond[c, k]
                steps[k] = 0.0
                if spins[label, i] != 0:
                    curvature = square_norm[i] + (shared[label] + own[label + 1] - own[label])
                    gradient = spins[label, i] * fields[k] - margin
                    new = min(max(duals[label, i] - gradient / curvature, 0.0), upper[i])
                    steps[k] = (new - duals[label, i]) * spins[label, i]
                    any_step |= new != duals[label, i]
                    duals[label, i] = new
            if not any_step:
                continue
            row_add_block(rows, i, steps, block)
            for c in range(len(seen_from)):
                weight = beyond[c]
                for k in range(seen_from[c], size):
                    weight[k] += steps[k] * around[c]
            for k in range(size):
                for c in range(own[first + k], own[first + k + 1]):
                    beyond[c, k] += steps[k] * around[c]


def shared_sweeps(problems, bounds, weights, duals, sweeps, seed):
    """Run ``sweeps`` sweeps in random order for each block of labels; ``bounds`` has the ends of blocks."""
    compiled = compilable(problems)

    def sweep_one(b, stop):
        sweep_block(compiled, bounds[b], bounds[b + 1], weights, duals, sweeps, seed, stop)

    stoppable(lambda stop: share(range(len(bounds) - 1), partial(sweep_one, stop=stop)))


@part
def stepped(dual, upper, gradient, curvature):
    """Return a dual variable after a gradient step of its log-odds, halved until the dual rises enough."""
    odds = -LIMIT if dual <= 0.0 else (LIMIT if dual >= upper else np.log(dual) - np.log(upper - dual))
    odds = min(max(odds, -LIMIT), LIMIT)
    share = 1.0 / (1.0 + np.exp(-odds))
    step = gradient / max(curvature * upper * share * (1.0 - share), 1e-300)
    step = min(max(step, -2.0 * LIMIT), 2.0 * LIMIT)
    while True:
        new = upper / (1.0 + np.exp(-min(max(odds + step, -LIMIT), LIMIT)))
        change = new - dual
        if change * gradient <= 0.0 or abs(step) < LEAST_STEP:
            return dual
        if abs(gradient) - 0.5 * curvature * abs(change) >= ENOUGH * abs(gradient):
            return new
        step *= 0.5


@njit(nogil=True, cache=True)
def sweep_label(label, weights, dual, sweeps, seed):
    """Run ``sweeps`` sweeps over all instances in random order; ``weights`` and ``dual`` change in place."""
    state = random_state(seed)
    order = np.flatnonzero((label.spins != 0) & (label.upper > 0))
    for _ in range(sweeps):
        shuffle(order, len(order), state)
        for i in order:
            gradient = label.margin - label.spins[i] * field(label, i, weights)
            new = stepped(dual[i], label.upper[i], gradient, label.curvature[i])
            if new != dual[i]:
                add_instance(label, i, (new - dual[i]) * label.spins[i], weights)
                dual[i] = new


def gradient_sweeps(problems, labels, weights, duals, sweeps, seed):
    """Run ``sweeps`` sweeps over all instances for each of ``labels``; weights and duals change in place."""
    compiled = compilable(problems)

    def sweep(k):
        own_weights = weights[:, k].copy()
        sweep_label(one_label(compiled, k), own_weights, duals[k], sweeps, seed + k)
        weights[:, k] = own_weights

    share(labels, sweep)
