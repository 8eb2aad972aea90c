"""Exponentiated gradient for label problems in plain NumPy: the readable reference of the compiled one.

The same function with the same arguments; an instance is visited once for all labels, whose problems do not
depend on each other.
"""

from __future__ import annotations

import numpy as np

from lmbm_torch.kernels.dual.plain.network import row_entries, sees

# Log-odds between which a dual is told from both bounds of its box, with room in double precision.
LIMIT = 30.0
# Share of the gain that the gradient promises which a step must make.
ENOUGH = 0.25
# Steps of the log-odds below this are round-off.
LEAST_STEP = 1e-12


def gradient_sweeps(problems, labels, weights, duals, sweeps, seed):
    """``sweeps`` sweeps over all instances for each of ``labels``; weights and duals change in place."""
    context, upper, seen = problems.context, problems.upper, sees(problems, labels)
    width = len(weights) - context.shape[1]
    random = np.random.default_rng(seed)
    for _ in range(sweeps):
        for i in random.permutation(duals.shape[1]):
            if upper[i] == 0:
                continue
            features, values = row_entries(problems.features, i)
            at = np.ix_(features, labels)
            signs = problems.spins[labels, i]
            gradient = problems.margin - signs * (values @ weights[at] + context[i] @ weights[width:, labels])
            old = duals[labels, i]
            new = _stepped(old, upper[i], gradient, problems.square_norm[i] + seen.sum(0))
            new = np.where(signs == 0, old, new)
            steps = (new - old) * signs
            duals[labels, i] = new
            weights[at] += np.outer(values, steps)
            weights[width:, labels] += np.outer(context[i], steps) * seen


def _stepped(duals, upper, gradient, curvature):
    """The duals after steps of their log-odds along the gradient, halved until the value climbs enough."""
    with np.errstate(divide="ignore"):
        odds = np.clip(np.log(duals) - np.log(upper - duals), -LIMIT, LIMIT)
    slope = curvature * upper * _sigmoid(odds) * (1 - _sigmoid(odds))
    steps = np.clip(gradient / np.maximum(slope, 1e-300), -2 * LIMIT, 2 * LIMIT)
    while True:
        new = upper * _sigmoid(np.clip(odds + steps, -LIMIT, LIMIT))
        change = new - duals
        too_far = np.abs(gradient) - 0.5 * curvature * np.abs(change) < ENOUGH * np.abs(gradient)
        climbs = (change * gradient > 0) & (np.abs(steps) >= LEAST_STEP)
        too_far &= climbs
        if not too_far.any():
            return np.where(climbs, new, duals)
        steps = np.where(too_far, 0.5 * steps, steps)


def _sigmoid(values):
    return 1 / (1 + np.exp(-values))
