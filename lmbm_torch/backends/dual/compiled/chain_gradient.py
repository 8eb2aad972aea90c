"""Exponentiated-gradient steps on the factored dual of chains, compiled for the CPU."""

from __future__ import annotations

import numpy as np

from lmbm_torch.backends.dual.compiled.chain_pairs import add_row, compilable, read_fields
from lmbm_torch.backends.dual.plain.chain_gradient import FASTER, HALVINGS
from lmbm_torch.backends.jit import njit

# Log-potentials of pairs no further apart than this need no logarithms: a sum is above e^−NARROW, what has
# underflowed below e^−700.
NARROW = 300.0


@njit(nogil=True, cache=True)
def weights_after(log_row, row, message, odds, is_narrow, weights):
    """weights_s = exp(log_row_s + message_s − c); returns c + log Σ_s of them.

    ``row`` and ``odds`` are exp(log_row) and exp(message), for rows that are narrow.
    """
    if is_narrow:
        weights[:] = row * odds
        return np.log(weights.sum())
    weights[:] = log_row + message
    largest = weights.max()
    weights[:] = np.exp(weights - largest)
    return largest + np.log(weights.sum())


@njit(nogil=True, cache=True)
def chain_marginals(log_nodes, log_pairs, nodes, pairs):
    """P(y_t), and Σ_t P(y_t, y_{t+1}), of log-potentials that are the same at every step.

    However far apart these are: what underflows is seen by no sum.
    """
    length, states = log_nodes.shape
    log_table = log_pairs - log_pairs.max()
    is_narrow = log_table.min() > -NARROW
    table, weights = np.exp(log_table), np.empty(states)
    # Of each position, with what is ahead of it: at most 0, and its exponential.
    messages, odds = log_nodes.copy(), np.empty_like(log_nodes)
    for t in range(length - 1, -1, -1):
        if t + 1 < length:
            ahead, odds_ahead = messages[t + 1], odds[t + 1]
            for r in range(states):
                messages[t, r] += weights_after(log_table[r], table[r], ahead, odds_ahead, is_narrow, weights)
        messages[t] -= messages[t].max()
        odds[t] = np.exp(messages[t])
    pairs[:] = 0.0
    nodes[0] = odds[0] / odds[0].sum()
    for t in range(1, length):
        nodes[t] = 0.0
        for r in range(states):
            if nodes[t - 1, r] > 0.0:
                weights_after(log_table[r], table[r], messages[t], odds[t], is_narrow, weights)
                weights *= nodes[t - 1, r] / weights.sum()
                pairs[r] += weights
                nodes[t] += weights


@njit(nogil=True, cache=True)
def rise(gram, fields, transition, node_step, pair_step, upper, penalty):
    """The gain of the dual by a step, divided by C."""
    gain, square = (fields * node_step).sum() + (transition * pair_step).sum(), 0.0
    for t in range(len(node_step)):
        for u in range(len(node_step)):
            square += gram[t, u] * (node_step[t] * node_step[u]).sum()
    square += (pair_step * pair_step).sum() / penalty
    return gain - 0.5 * upper * square


def gradient_sweep(problem, marginals, scores, transition, order):
    """Visit the chains in the order given; changes ``marginals``, ``scores`` and ``transition`` in place.

    Args:
        problem: a :class:`lmbm_torch.solvers.chains.kernel_problem.ChainKernelProblem`.
        marginals: a :class:`~lmbm_torch.backends.dual.plain.chain_gradient.Marginals`.
        scores: (states, positions); transition: (states, states): what the marginals' weights give.
    """
    _sweep(compilable(problem), marginals, scores, transition, order)


@njit(nogil=True, cache=True)
def _sweep(chains, marginals, scores, transition, order):
    gram, start, labels, upper, penalty = chains
    log_nodes, log_pairs, nodes, pairs, rates = marginals
    states = len(scores)
    longest = np.max(start[1:] - start[:-1])
    all_fields = np.empty((longest, states))
    for x in order:
        if upper[x] <= 0.0:
            continue
        first, last = start[x], start[x + 1]
        fields = all_fields[: last - first]
        read_fields(scores, labels, first, last, fields)
        own = gram[first:last, first:last]
        new_nodes, new_pairs = np.empty_like(fields), np.empty_like(transition)
        for _ in range(HALVINGS):
            log_n = log_nodes[first:last] + rates[x] * fields
            log_p = log_pairs[x] + rates[x] * transition
            chain_marginals(log_n, log_p, new_nodes, new_pairs)
            node_step, pair_step = new_nodes - nodes[first:last], new_pairs - pairs[x]
            if rise(own, fields, transition, node_step, pair_step, upper[x], penalty) > 0.0:
                log_nodes[first:last] = log_n
                log_pairs[x] = log_p
                nodes[first:last] = new_nodes
                pairs[x] = new_pairs
                transition -= upper[x] * pair_step / penalty
                for t in range(last - first):
                    for s in range(states):
                        if node_step[t, s] != 0.0:
                            add_row(gram[first + t], -upper[x] * node_step[t, s], scores[s])
                rates[x] *= FASTER
                break
            rates[x] *= 0.5
