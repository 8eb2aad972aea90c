"""Negative log-likelihoods of chains and their gradients, compiled for the CPU."""

from __future__ import annotations

import math

import numpy as np

from lmbm_torch.kernels.jit import fast

# Transitions no further apart than this need no logarithms: no sum sees what has underflowed, below e^-700.
NARROW = 300.0
# Of a sum of exponentials, those below e^-40 of the largest are left out: they are below its last digit.
SEEN = 40.0


def loss_and_gradient(scores, transition, start, labels, upper, errors, pairs):
    """See :func:`lmbm_torch.kernels.dual.plain.chain_likelihood.loss_and_gradient`."""
    compute = _by_probabilities if np.ptp(transition) <= NARROW else _by_logarithms
    return compute(scores, transition, start, labels, upper, errors, pairs)


@fast
def _by_probabilities(scores, transition, start, labels, upper, errors, pairs):
    """For transitions that are narrow: messages are probabilities, of sum 1."""
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


@fast
def log_sum(values):
    """log Σ_s exp(values_s)."""
    largest = values[0]
    for s in range(1, len(values)):
        largest = max(largest, values[s])
    total = 0.0
    for s in range(len(values)):
        if values[s] > largest - SEEN:
            total += math.exp(values[s] - largest)
    return largest + math.log(total)


@fast
def lower(values):
    """Subtract the largest of the values from all; returns it."""
    largest = values[0]
    for s in range(1, len(values)):
        largest = max(largest, values[s])
    for s in range(len(values)):
        values[s] -= largest
    return largest


@fast
def _by_logarithms(scores, transition, start, labels, upper, errors, pairs):
    """For transitions however far apart: messages are logarithms, the largest of each 0."""
    states, longest = scores.shape[1], 0
    for x in range(len(upper)):
        longest = max(longest, start[x + 1] - start[x])
    forward, values = np.empty((longest, states)), np.empty((states, states))
    ahead, behind, sums, into = np.empty(states), np.empty(states), np.empty(states), transition.T.copy()
    total = 0.0
    for x in range(len(upper)):
        first, length, weight = start[x], start[x + 1] - start[x], upper[x]
        if weight == 0.0:
            errors[first : first + length] = 0.0
            continue
        loss = 0.0
        for t in range(length):
            row, label, message = scores[first + t], labels[first + t], forward[t]
            loss -= row[label]
            if t > 0:
                loss -= transition[labels[first + t - 1], label]
            for s in range(states):
                message[s] = row[s]
                if t > 0:
                    for r in range(states):
                        sums[r] = forward[t - 1, r] + into[s, r]
                    message[s] += log_sum(sums)
            loss += lower(message)
        loss += log_sum(forward[length - 1])
        total += weight * loss
        behind[:] = 0.0
        for t in range(length - 1, -1, -1):
            label = labels[first + t]
            for s in range(states):
                sums[s] = forward[t, s] + behind[s]
            norm = log_sum(sums)
            for s in range(states):
                errors[first + t, s] = weight * math.exp(sums[s] - norm)
            errors[first + t, label] -= weight
            if t == 0:
                break
            pairs[labels[first + t - 1], label] -= weight
            for s in range(states):
                ahead[s] = scores[first + t, s] + behind[s]
            for r in range(states):
                for s in range(states):
                    values[r, s] = transition[r, s] + ahead[s]
                behind[r] = log_sum(values[r])
                sums[r] = forward[t - 1, r] + behind[r]
            norm = log_sum(sums)
            for r in range(states):
                if sums[r] > norm - SEEN:
                    for s in range(states):
                        exponent = forward[t - 1, r] + values[r, s] - norm
                        if exponent > -SEEN:
                            pairs[r, s] += weight * math.exp(exponent)
            lower(behind)
    return total
