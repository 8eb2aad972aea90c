"""Dual coordinate descent and exponentiated gradient for label problems in plain NumPy.

The readable reference: functions and arguments are those of the compiled module, without shrinking and steps
on faces. An instance is visited once for all labels; the labels' problems are independent, so each visit is
exact minimisation in K coordinates.
"""

from __future__ import annotations

import numpy as np


def shared_sweeps(problems, bounds, weights, duals, sweeps, seed):
    """Run ``sweeps`` random sweeps over all instances for the labels ``bounds[0]`` to ``bounds[-1] − 1``."""
    labels = np.arange(bounds[0], bounds[-1])
    for sweep in range(sweeps):
        _sweep(problems, labels, weights, duals, (seed, sweep))


def solve_labels(problems, labels, weights, duals, tol, rounds, seed):
    """Sweep over ``labels`` up to ``rounds`` times, or until every relative gap is at most ``tol``.

    ``weights`` and ``duals`` are changed in place.

    Returns:
        Primal values, dual values and rounds made, (labels,) each.
    """
    made = np.zeros(len(labels), np.int64)
    spins, margin = problems.spins[labels].T, problems.margin
    while True:
        columns = weights[:, labels]
        hinge = np.maximum(margin - spins * _fields(problems, columns), 0.0)
        square = 0.5 * np.square(columns).sum(0)
        primal = square + problems.upper @ np.where(spins == 0, 0.0, hinge)
        value = margin * duals[labels].sum(1) - square
        going_on = (primal - value > tol * primal) & (made < rounds)
        if not going_on.any():
            return primal, value, made
        _sweep(problems, labels[going_on], weights, duals, seed + int(made.max()))
        made[going_on] += 1


def _fields(problems, weights):
    width = weights.shape[0] - problems.context.shape[1]
    return problems.features @ weights[:width] + problems.context @ weights[width:]


def _sweep(problems, labels, weights, duals, seed):
    context, upper, seen = problems.context, problems.upper, sees(problems, labels)
    curvatures = problems.square_norm[:, None] + seen.sum(0)
    width = weights.shape[0] - context.shape[1]
    for i in np.random.default_rng(seed).permutation(duals.shape[1]):
        features, values = row_entries(problems.features, i)
        at, spins, old = np.ix_(features, labels), problems.spins[labels, i], duals[labels, i]
        fields = values @ weights[at] + context[i] @ weights[width:, labels]
        gradient = spins * fields - problems.margin
        new = np.where(spins == 0, old, np.clip(old - gradient / curvatures[i], 0.0, upper[i]))
        steps = (new - old) * spins
        duals[labels, i] = new
        weights[at] += np.outer(values, steps)
        weights[width:, labels] += np.outer(context[i], steps) * seen


def sees(problems, labels):
    """Return (columns of the context, labels), True where each of ``labels`` has a weight."""
    column, shared, own = np.arange(problems.context.shape[1])[:, None], problems.shared, problems.own
    return (column < shared[labels]) | ((column >= own[labels]) & (column < own[labels + 1]))


def row_entries(rows, i):
    """Return the columns of row i with non-zero values, and the values."""
    if isinstance(rows, np.ndarray):
        return np.arange(rows.shape[1]), rows[i]
    span = slice(rows.indptr[i], rows.indptr[i + 1])
    return rows.indices[span], rows.data[span]


# Largest |log-odds| of a dual: distinguishable from both bounds of the box in double precision.
LIMIT = 30.0
# Least share of the gain promised by the gradient.
ENOUGH = 0.25
# Steps of the log-odds below LEAST_STEP are round-off.
LEAST_STEP = 1e-12


def gradient_sweeps(problems, labels, weights, duals, sweeps, seed):
    """Run ``sweeps`` sweeps over all instances for each of ``labels``; weights and duals change in place."""
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
    """Return the duals after steps of the log-odds along the gradient, halved for a sufficient climb."""
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
