"""Exponentiated-gradient steps on the factored dual of chains, compiled for the CPU."""

from __future__ import annotations

import numpy as np
from numba import njit

from lmbm_torch.backends.numba_chain_smo import add_row, read_fields

# A step that does not increase the dual is halved so often before its chain is left as it was.
HALVINGS = 20
FASTER = 1.1


@njit(nogil=True, cache=True)
def chain_marginals(log_nodes, log_pairs, nodes, pairs):
    """P(y_t), and Σ_t P(y_t, y_{t+1}), of log-potentials that are the same at every step."""
    length, states = log_nodes.shape
    table = np.exp(log_pairs - log_pairs.max())
    local = np.empty((length, states))
    for t in range(length):
        local[t] = np.exp(log_nodes[t] - log_nodes[t].max())
    ahead = np.ones((length, states))
    for t in range(length - 2, -1, -1):
        ahead[t] = table @ (local[t + 1] * ahead[t + 1])
        ahead[t] /= ahead[t].max()
    pairs[:] = 0.0
    nodes[0] = local[0] * ahead[0]
    nodes[0] /= nodes[0].sum()
    for t in range(1, length):
        after = local[t] * ahead[t]
        nodes[t] = 0.0
        for r in range(states):
            weights = table[r] * after
            weights *= nodes[t - 1, r] / weights.sum()
            pairs[r] += weights
            nodes[t] += weights


@njit(nogil=True, cache=True)
def rise(gram, fields, transition, node_step, pair_step, upper, penalty):
    """What the dual gains by a step, over C."""
    gain, square = (fields * node_step).sum() + (transition * pair_step).sum(), 0.0
    for t in range(len(node_step)):
        for u in range(len(node_step)):
            square += gram[t, u] * (node_step[t] * node_step[u]).sum()
    square += (pair_step * pair_step).sum() / penalty
    return gain - 0.5 * upper * square


@njit(nogil=True, cache=True)
def gradient_sweep(
    gram, start, labels, upper, penalty, log_nodes, log_pairs, nodes, pairs, rates, scores, transition, order
):
    """Visit the chains in the order given; changes everything from ``log_nodes`` on in place.

    Args:
        gram: (positions, positions).
        log_nodes: (positions, states); log_pairs: (chains, states, states): log-potentials.
        nodes: (positions, states); pairs: (chains, states, states): their marginals.
        rates: (chains,), each chain's step size.
        scores: (states, positions); transition: (states, states): what the marginals' weights give.
    """
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
