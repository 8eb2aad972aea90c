"""Dual coordinate descent for labels whose cliques share weights, compiled for the CPU.

An instance is visited for all labels at once: the weights are stored feature-major, so that one feature's
weights for all labels are one contiguous vector, and only the few weights that labels share are looked at
label by label, each step known to the next.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from lmbm_torch.backends.numba_random import random_state, shuffle
from lmbm_torch.backends.numba_rows import row_add_block, row_dot_block

# Sums may be reassociated (that is what vectorises a dot product); NaN and infinity keep their meaning.
SUMS = {"reassoc", "contract", "nsz", "arcp"}


@njit(nogil=True, cache=True, fastmath=SUMS)
def _sweep(
    rows,
    constant,
    spins,
    products,
    start,
    member,
    groups,
    penalty,
    upper,
    curvature,
    margin,
    weights,
    couplings,
    duals,
    sweeps,
    seed,
):
    """Random sweeps; label k is in the cliques ``member[start[k] : start[k + 1]]``."""
    features, bias = weights[:-1], weights[-1]
    size = len(spins)
    fields, steps = np.empty(size), np.empty(size)
    order = np.arange(len(products))
    state = random_state(seed)
    for _ in range(sweeps):
        shuffle(order, len(order), state)
        for i in order:
            product = products[i]
            for k in range(size):
                fields[k] = constant * bias[k]
            row_dot_block(rows, i, features, fields)
            any_step = False
            for k in range(size):
                mine = member[start[k] : start[k + 1]]
                gradient = spins[k, i] * fields[k] - margin
                for c in mine:
                    gradient += couplings[groups[c]] * product[c]
                old = duals[k, i]
                # A loss that depends on no weight cannot be reduced: its dual belongs at its bound.
                new = upper[i]
                if curvature[k, i] > 0.0:
                    new = min(max(old - gradient / curvature[k, i], 0.0), upper[i])
                steps[k] = (new - old) * spins[k, i]
                if new != old:
                    any_step = True
                    duals[k, i] = new
                    for c in mine:
                        couplings[groups[c]] += (new - old) * product[c] / penalty[groups[c]]
            if any_step:
                row_add_block(rows, i, steps, features)
                for k in range(size):
                    bias[k] += constant * steps[k]


def sweep(problem, rows, curvature, weights, couplings, duals, sweeps, seed):
    """``sweeps`` random sweeps over all instances, each visited once for all labels.

    ``weights`` (features and constant, labels), ``couplings`` (shared weights,) and ``duals`` are changed in
    place; ``curvature`` is (labels, instances).
    """
    cliques_of = [np.flatnonzero(inside) for inside in problem.membership]
    _sweep(
        rows,
        problem.constant,
        problem.spins,
        problem.products,
        np.cumsum([0] + [len(mine) for mine in cliques_of]),
        np.concatenate(cliques_of),
        problem.groups,
        problem.penalty,
        problem.upper,
        curvature,
        problem.margin,
        weights,
        couplings,
        duals,
        sweeps,
        seed,
    )
