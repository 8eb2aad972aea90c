"""Exponentiated-gradient steps on the factored dual of chains, compiled for the CPU."""

from __future__ import annotations

import numpy as np

from lmbm_torch.kernels.dual.compiled.chain_pairs import add_row, compilable, read_fields
from lmbm_torch.kernels.dual.plain.chain_gradient import FASTER, HALVINGS
from lmbm_torch.kernels.jit import njit

# Log-potentials of pairs no further apart than this need no logarithms: a sum is above e^−NARROW, what has
# underflowed below e^−700.
NARROW = 300.0


# Loops in place of whole arrays: with each expression numba compiles messages about shapes, which took three
# times as long as all that is computed here.
@njit(nogil=True, cache=True)
def largest_of(values):
    """max_s values_s."""
    largest = values[0]
    for s in range(1, len(values)):
        largest = max(largest, values[s])
    return largest


@njit(nogil=True, cache=True)
def weights_after(log_row, row, message, odds, is_narrow, weights):
    """weights_s = exp(log_row_s + message_s − c); returns c and Σ_s of them.

    ``row`` and ``odds`` are exp(log_row) and exp(message), for rows that are narrow.
    """
    largest, total = 0.0, 0.0
    if not is_narrow:
        for s in range(len(weights)):
            weights[s] = log_row[s] + message[s]
        largest = largest_of(weights)
    for s in range(len(weights)):
        weights[s] = row[s] * odds[s] if is_narrow else np.exp(weights[s] - largest)
        total += weights[s]
    return largest, total


@njit(nogil=True, cache=True)
def chain_marginals(log_nodes, log_pairs, nodes, pairs):
    """P(y_t), and Σ_t P(y_t, y_{t+1}), of log-potentials that are the same at every step.

    However far apart these are: what underflows is seen by no sum.
    """
    length, states = log_nodes.shape
    log_table, table = np.empty((states, states)), np.empty((states, states))
    largest, least = -np.inf, np.inf
    for r in range(states):
        for s in range(states):
            largest, least = max(largest, log_pairs[r, s]), min(least, log_pairs[r, s])
    for r in range(states):
        for s in range(states):
            log_table[r, s] = log_pairs[r, s] - largest
            table[r, s] = np.exp(log_table[r, s])
            pairs[r, s] = 0.0
    is_narrow = least - largest > -NARROW
    weights = np.empty(states)
    # Of each position, with what is ahead of it: at most 0, and its exponential.
    messages, odds = np.empty((length, states)), np.empty((length, states))
    for t in range(length - 1, -1, -1):
        for r in range(states):
            messages[t, r] = log_nodes[t, r]
            if t + 1 < length:
                shift, total = weights_after(
                    log_table[r], table[r], messages[t + 1], odds[t + 1], is_narrow, weights
                )
                messages[t, r] += shift + np.log(total)
        largest = largest_of(messages[t])
        for r in range(states):
            messages[t, r] -= largest
            odds[t, r] = np.exp(messages[t, r])
    total = 0.0
    for s in range(states):
        total += odds[0, s]
    for s in range(states):
        nodes[0, s] = odds[0, s] / total
    for t in range(1, length):
        for s in range(states):
            nodes[t, s] = 0.0
        for r in range(states):
            if nodes[t - 1, r] > 0.0:
                _, total = weights_after(log_table[r], table[r], messages[t], odds[t], is_narrow, weights)
                for s in range(states):
                    share = weights[s] * nodes[t - 1, r] / total
                    pairs[r, s] += share
                    nodes[t, s] += share


@njit(nogil=True, cache=True)
def rise(gram, fields, transition, node_step, pair_step, upper, penalty):
    """The gain of the dual by a step, divided by C."""
    gain, square = 0.0, 0.0
    length, states = node_step.shape
    for t in range(length):
        for s in range(states):
            gain += fields[t, s] * node_step[t, s]
        for u in range(length):
            product = 0.0
            for s in range(states):
                product += node_step[t, s] * node_step[u, s]
            square += gram[t, u] * product
    for r in range(states):
        for s in range(states):
            gain += transition[r, s] * pair_step[r, s]
            square += pair_step[r, s] * pair_step[r, s] / penalty
    return gain - 0.5 * upper * square


@njit(nogil=True, cache=True)
def moved(values, rate, direction, out):
    """values + rate · direction, matrices, written into ``out``."""
    for t in range(out.shape[0]):
        for s in range(out.shape[1]):
            out[t, s] = values[t, s] + rate * direction[t, s]


def gradient_sweep(problem, marginals, scores, transition, order):
    """Visit the chains in the order given; changes ``marginals``, ``scores`` and ``transition`` in place.

    Args:
        problem: a :class:`lmbm_torch.solvers.chains.kernel_problem.ChainKernelProblem`.
        marginals: a :class:`~lmbm_torch.kernels.dual.plain.chain_gradient.Marginals`.
        scores: (states, positions); transition: (states, states): what the marginals' weights give.
    """
    _sweep(compilable(problem), marginals, scores, transition, order)


@njit(nogil=True, cache=True)
def copied(values, out):
    """A matrix written into another one."""
    for t in range(out.shape[0]):
        for s in range(out.shape[1]):
            out[t, s] = values[t, s]


@njit(nogil=True, cache=True)
def _sweep(chains, marginals, scores, transition, order):
    gram, start, labels, upper, penalty = chains
    log_nodes, log_pairs, nodes, pairs, rates = marginals
    states, longest = len(scores), 0
    for x in order:
        longest = max(longest, start[x + 1] - start[x])
    all_fields, all_log_nodes, all_nodes, all_steps = np.empty((4, longest, states))
    log_p, new_pairs, pair_step = np.empty((3, states, states))
    for x in order:
        if upper[x] <= 0.0:
            continue
        first, last = start[x], start[x + 1]
        length = last - first
        fields, log_n = all_fields[:length], all_log_nodes[:length]
        new_nodes, node_step = all_nodes[:length], all_steps[:length]
        read_fields(scores, labels, first, last, fields)
        own = gram[first:last, first:last]
        for _ in range(HALVINGS):
            moved(log_nodes[first:last], rates[x], fields, log_n)
            moved(log_pairs[x], rates[x], transition, log_p)
            chain_marginals(log_n, log_p, new_nodes, new_pairs)
            moved(new_nodes, -1.0, nodes[first:last], node_step)
            moved(new_pairs, -1.0, pairs[x], pair_step)
            if rise(own, fields, transition, node_step, pair_step, upper[x], penalty) > 0.0:
                copied(log_n, log_nodes[first:last])
                copied(log_p, log_pairs[x])
                copied(new_nodes, nodes[first:last])
                copied(new_pairs, pairs[x])
                moved(transition, -upper[x] / penalty, pair_step, transition)
                for t in range(length):
                    for s in range(states):
                        if node_step[t, s] != 0.0:
                            add_row(gram[first + t], -upper[x] * node_step[t, s], scores[s])
                rates[x] *= FASTER
                break
            rates[x] *= 0.5
