"""Dual coordinate descent for Boltzmann machines, whose labels share the weights of cliques.

The method is Algorithm 1 of large_margin_boltzmann_machines_2009 with 1/η_j in line 9: an exact step on one
dual variable after another. A sweep updates the dual variables of all labels of an instance together, before
the next instance; only the few shared weights are updated label by label. Most dual variables soon stay at a
bound. Therefore cheap sweeps over the free dual variables (not at a bound) follow each sweep over all.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from lmbm_torch.kernels.dual.random import random_state, shuffle
from lmbm_torch.kernels.dual.rows import by_output, readable, row_add, row_add_block, row_dot, row_dot_block
from lmbm_torch.kernels.jit import SUMS, njit, part
from lmbm_torch.kernels.threads import stoppable

FREE_SWEEPS = 9


class Losses(NamedTuple):
    """The hinge losses, and the shared weights in the fields.

    The field of label k at instance i contains ``products[i, m]`` times the shared weight ``weight[m]`` for m
    from ``start[k]`` to ``start[k + 1]``.
    """

    rows: Any
    constant: float
    spins: np.ndarray
    products: np.ndarray
    weight: np.ndarray
    start: np.ndarray
    penalty: np.ndarray
    upper: np.ndarray
    curvature: np.ndarray
    margin: float


class Parts(NamedTuple):
    """The weights and the dual variables, which sweeps change in place."""

    features: np.ndarray  # (labels, features) for dense features, else (features, labels)
    bias: np.ndarray  # (labels,)
    couplings: np.ndarray  # (shared weights,)
    duals: np.ndarray  # (instances, labels)


@njit(cache=True, fastmath=SUMS, inline="always")
def _gradient(spin, field, margin, couplings, weight, product, span):
    """Return minus the derivative by a dual variable; ``field`` does not include the shared weights."""
    total = spin * field - margin
    for m in span:
        total += couplings[weight[m]] * product[m]
    return total


@njit(cache=True, inline="always")
def _best(old, gradient, curvature, upper):
    # Without curvature no weight can reduce the loss, so the optimal dual variable is the upper bound.
    return min(max(old - gradient / curvature, 0.0), upper) if curvature > 0.0 else upper


@njit(cache=True, fastmath=SUMS, inline="always")
def _add_shared(step, couplings, penalty, weight, product, span):
    for m in span:
        couplings[weight[m]] += step * product[m] / penalty[weight[m]]


@part(fastmath=SUMS)
def _sweep_all(losses, order, parts, free, stop):
    """Update every dual variable; collect the free variables in ``free``, and count the free variables.

    As all sweeps, this sweep ends early if ``stop`` becomes true.
    """
    stored, bias, couplings, duals = parts
    rows, constant, spins, products, weight, start, penalty, upper, curvature, margin = losses
    features, size = by_output(rows, stored), len(bias)
    fields, steps = np.empty(size), np.empty(size)
    count = 0
    for i in order:
        if stop[0]:
            break
        for k in range(size):
            fields[k] = constant * bias[k]
        row_dot_block(rows, i, features, fields)
        any_step = False
        instance, dual, bound = products[i], duals[i], upper[i]
        for k in range(size):
            span = range(start[k], start[k + 1])
            gradient = _gradient(spins[i, k], fields[k], margin, couplings, weight, instance, span)
            old = dual[k]
            new = _best(old, gradient, curvature[i, k], bound)
            steps[k] = (new - old) * spins[i, k]
            if new != old:
                any_step = True
                dual[k] = new
                _add_shared(new - old, couplings, penalty, weight, instance, span)
            if 0.0 < new < bound:
                free[count, 0], free[count, 1] = i, k
                count += 1
        if any_step:
            row_add_block(rows, i, steps, features)
            for k in range(size):
                bias[k] += constant * steps[k]
    return count


@part(fastmath=SUMS)
def _sweep_free(losses, free, parts, stop):
    """Update the dual variables in ``free``."""
    stored, bias, couplings, duals = parts
    rows, constant, spins, products, weight, start, penalty, upper, curvature, margin = losses
    features = by_output(rows, stored)
    for f in range(len(free)):
        if stop[0]:
            break
        i, k = free[f, 0], free[f, 1]
        span, instance = range(start[k], start[k + 1]), products[i]
        mine = features[:, k]
        field = row_dot(rows, i, mine) + constant * bias[k]
        gradient = _gradient(spins[i, k], field, margin, couplings, weight, instance, span)
        old = duals[i, k]
        new = _best(old, gradient, curvature[i, k], upper[i])
        if new != old:
            duals[i, k] = new
            _add_shared(new - old, couplings, penalty, weight, instance, span)
            step = (new - old) * spins[i, k]
            row_add(rows, i, step, mine)
            bias[k] += constant * step


@njit(nogil=True, cache=True)
def _sweeps(losses, parts, sweeps, seed, stop):
    order = np.arange(len(parts.duals))
    free = np.empty((parts.duals.size, 2), np.uint64)
    state = random_state(seed)
    for _ in range(sweeps):
        if stop[0]:
            break
        shuffle(order, len(order), state)
        count = _sweep_all(losses, order, parts, free, stop)
        for _ in range(FREE_SWEEPS):
            _sweep_free(losses, free[:count], parts, stop)


def sweep(problem, curvature, weights, couplings, duals, sweeps, seed):
    """Run ``sweeps`` sweeps over all instances in random order, each followed by sweeps over free duals.

    ``weights`` (features and constant, labels), ``couplings`` (shared weights,) and ``duals`` are changed in
    place; ``curvature`` is (labels, instances).
    """
    label, clique = problem.membership.nonzero()
    losses = Losses(
        rows=readable(problem.features),
        constant=problem.constant,
        spins=np.ascontiguousarray(problem.spins.T),
        products=problem.products.take(clique, axis=1),
        weight=problem.groups[clique].astype(np.uint64),
        start=np.searchsorted(label, np.arange(problem.num_labels + 1)).astype(np.uint64),
        penalty=problem.penalty,
        upper=problem.upper,
        curvature=np.ascontiguousarray(curvature.T),
        margin=problem.margin,
    )
    # For dense features, weights of a label are contiguous; for sparse features, weights of a feature are.
    is_dense = isinstance(problem.features, np.ndarray)
    features = np.array(weights[:-1].T if is_dense else weights[:-1], order="C")
    parts = Parts(features, weights[-1].copy(), couplings, np.ascontiguousarray(duals.T))
    stoppable(lambda stop: _sweeps(losses, parts, sweeps, seed, stop))
    weights[:-1], weights[-1], duals[:] = features.T if is_dense else features, parts.bias, parts.duals.T
