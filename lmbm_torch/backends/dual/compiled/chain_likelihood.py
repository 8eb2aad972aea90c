"""Negative log-likelihoods of chains and their gradients, compiled for the CPU."""

from __future__ import annotations

import math

import numpy as np

from lmbm_torch.backends.jit import fast


@fast
def loss_and_gradient(scores, transition, start, labels, upper, errors, pairs):
    """See :func:`lmbm_torch.backends.dual.plain.chain_likelihood.loss_and_gradient`.

    For transitions within its ``NARROW``: messages are probabilities, of sum 1.
    """
    states, longest = scores.shape[1], 0
    for x in range(len(upper)):
        longest = max(longest, start[x + 1] - start[x])
    forward, odds = np.empty((longest, states)), np.empty((longest, states))
    ahead, behind = np.empty(states), np.empty(states)
    # Of pairs without their transitions' factor, which all have in common.
    products, table, highest = np.zeros((states, states)), np.empty((states, states)), transition[0, 0]
    for r in range(states):
        for s in range(states):
            highest = max(highest, transition[r, s])
    for r in range(states):
        for s in range(states):
            table[r, s] = np.exp(transition[r, s] - highest)
    total = 0.0
    for x in range(len(upper)):
        first, length, weight = start[x], start[x + 1] - start[x], upper[x]
        if weight == 0.0:
            errors[first : first + length] = 0.0
            continue
        loss = highest * (length - 1)
        for t in range(length):
            row, label, message = scores[first + t], labels[first + t], forward[t]
            largest = row[0]
            for s in range(states):
                largest = max(largest, row[s])
            loss += largest - row[label]
            for s in range(states):
                odds[t, s] = np.exp(row[s] - largest)
                message[s] = 1.0 if t == 0 else 0.0
            if t > 0:
                loss -= transition[labels[first + t - 1], label]
                for r in range(states):
                    for s in range(states):
                        message[s] += forward[t - 1, r] * table[r, s]
            norm = 0.0
            for s in range(states):
                message[s] *= odds[t, s]
                norm += message[s]
            for s in range(states):
                message[s] /= norm
            loss += math.log(norm)
        total += weight * loss
        for s in range(states):
            behind[s] = 1.0
        for t in range(length - 1, -1, -1):
            label, norm, largest = labels[first + t], 0.0, 0.0
            for s in range(states):
                norm += forward[t, s] * behind[s]
            for s in range(states):
                errors[first + t, s] = weight * forward[t, s] * behind[s] / norm
            errors[first + t, label] -= weight
            if t == 0:
                break
            pairs[labels[first + t - 1], label] -= weight
            for s in range(states):
                ahead[s] = odds[t, s] * behind[s]
                largest = max(largest, ahead[s])
            norm = 0.0
            for r in range(states):
                behind[r] = 0.0
                for s in range(states):
                    behind[r] += table[r, s] * ahead[s]
                behind[r] /= largest
                norm += forward[t - 1, r] * behind[r]
            for r in range(states):
                share = weight * forward[t - 1, r] / (norm * largest)
                for s in range(states):
                    products[r, s] += share * ahead[s]
    for r in range(states):
        for s in range(states):
            pairs[r, s] += products[r, s] * table[r, s]
    return total
