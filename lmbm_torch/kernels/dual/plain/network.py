"""Dual coordinate descent for label problems in plain NumPy: the readable reference of the compiled one.

The same two functions with the same arguments; no shrinking and no steps on faces. An instance is visited
once for all labels, whose problems do not depend on each other, so each visit is exact minimisation in K
coordinates.
"""

from __future__ import annotations

import numpy as np


def shared_sweeps(problems, bounds, weights, duals, sweeps, seed):
    """``sweeps`` random sweeps over all instances for the labels from ``bounds[0]`` up to ``bounds[-1]``."""
    labels = np.arange(bounds[0], bounds[-1])
    for sweep in range(sweeps):
        _sweep(problems, labels, weights, duals, (seed, sweep))


def solve_labels(problems, labels, weights, duals, tol, rounds, seed):
    """Sweep over ``labels`` for up to ``rounds`` times, or until every relative gap is at most ``tol``.

    ``weights`` and ``duals`` are changed in place. Returns primal values, dual values and rounds made, one
    entry for each of ``labels``.
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
    """(columns of the context, labels): which of them each of ``labels`` has a weight for."""
    column, shared, own = np.arange(problems.context.shape[1])[:, None], problems.shared, problems.own
    return (column < shared[labels]) | ((column >= own[labels]) & (column < own[labels + 1]))


def row_entries(rows, i):
    """The columns of row i that are not zero, and their values."""
    if isinstance(rows, np.ndarray):
        return np.arange(rows.shape[1]), rows[i]
    span = slice(rows.indptr[i], rows.indptr[i + 1])
    return rows.indices[span], rows.data[span]
