"""Exponentiated gradient steps for label problems that share their inputs, compiled for the CPU.

Arguments are those of :mod:`~lmbm_torch.kernels.dual.compiled.network`.
"""

from __future__ import annotations

import numpy as np

from lmbm_torch.kernels.dual.compiled.network import add_instance, compilable, field, one_label
from lmbm_torch.kernels.dual.compiled.random import random_state, shuffle
from lmbm_torch.kernels.dual.plain.network_gradient import ENOUGH, LEAST_STEP, LIMIT
from lmbm_torch.kernels.jit import njit
from lmbm_torch.kernels.threads import share


@njit(cache=True)
def stepped(dual, upper, gradient, curvature):
    """The dual after a step of its log-odds along the gradient, halved until the value climbs enough."""
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
    """``sweeps`` sweeps over all instances in random order; ``weights`` and ``dual`` change in place."""
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
    """``sweeps`` sweeps over all instances for each of ``labels``; weights and duals change in place."""
    compiled = compilable(problems)

    def sweep(k):
        own_weights = weights[:, k].copy()
        sweep_label(one_label(compiled, k), own_weights, duals[k], sweeps, seed + k)
        weights[:, k] = own_weights

    share(labels, sweep)
