"""Negative log-likelihoods of chains and their gradients in plain NumPy: the readable reference.

The same function with the same arguments as the compiled one. Sums are of logarithms throughout, so that
transitions may be however far apart.
"""

from __future__ import annotations

import numpy as np


def loss_and_gradient(scores, transition, start, labels, upper, errors, pairs):
    """Σ_x upper_x (log Σ_y exp(score(y)) − score(y_x)); its gradient goes to ``errors`` and ``pairs``.

    Args:
        scores: (positions, states), unary log-potentials.
        transition: (states, states).
        start: (chains + 1,), where each chain's positions begin, among all of ``scores``.
        labels: (positions,), the true states.
        upper: (chains,), weights of the losses; where it is 0 the gradient is.
        errors: (positions, states), those of these chains are overwritten.
        pairs: (states, states), added to.
    """
    total = 0.0
    for first, end, weight in zip(start[:-1], start[1:], upper, strict=True):
        errors[first:end] = 0
        if weight == 0:
            continue
        unary, truth = scores[first:end], labels[first:end]
        forward, backward = [unary[0]], [np.zeros(unary.shape[1])]
        for row in unary[1:]:
            forward.append(row + np.logaddexp.reduce(forward[-1][:, None] + transition, 0))
        for row in unary[:0:-1]:
            backward.append(np.logaddexp.reduce(transition + row + backward[-1], 1))
        log_partition, backward = np.logaddexp.reduce(forward[-1]), backward[::-1]
        steps = truth[:-1], truth[1:]
        total += weight * (
            log_partition - unary[np.arange(len(truth)), truth].sum() - transition[steps].sum()
        )
        errors[first:end] = weight * np.exp(np.add(forward, backward) - log_partition)
        errors[np.arange(first, end), truth] -= weight
        for before, row, ahead in zip(forward[:-1], unary[1:], backward[1:], strict=True):
            pairs += weight * np.exp(before[:, None] + transition + row + ahead - log_partition)
        np.subtract.at(pairs, steps, weight)
    return total
