"""Exponentiated-gradient steps on the factored dual of chains in plain NumPy: the readable reference.

The same function with the same arguments as the compiled one.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

# A step that does not increase the dual is halved so often before its chain is left as it was.
HALVINGS = 20
FASTER = 1.1


class Marginals(NamedTuple):
    """The dual's distributions over labellings, one for each chain.

    Args:
        log_nodes: (positions, states), log-potentials, not normalised.
        log_pairs: (chains, states, states), log-potentials too, the same at every step.
        nodes: (positions, states), P(y_t).
        pairs: (chains, states, states), Σ_t P(y_t, y_{t+1}).
        rates: (chains,), each chain's step size.
    """

    log_nodes: np.ndarray
    log_pairs: np.ndarray
    nodes: np.ndarray
    pairs: np.ndarray
    rates: np.ndarray


def gradient_sweep(problem, marginals, scores, transition, order):
    """Visit the chains in the order given; changes ``marginals``, ``scores`` and ``transition`` in place."""
    gram, start, upper, penalty = problem.gram, problem.start, problem.upper, problem.coupling_penalty
    log_nodes, log_pairs, nodes, pairs, rates = marginals
    for x in order:
        if upper[x] <= 0:
            continue
        span = slice(start[x], start[x + 1])
        fields = scores[:, span].T + 1
        fields[np.arange(len(fields)), problem.labels[span]] -= 1
        for _ in range(HALVINGS):
            log_n, log_p = log_nodes[span] + rates[x] * fields, log_pairs[x] + rates[x] * transition
            new_nodes, new_pairs = _marginals(log_n, log_p)
            node_step, pair_step = new_nodes - nodes[span], new_pairs - pairs[x]
            square = (
                np.vdot(node_step, gram[span, span] @ node_step) + np.vdot(pair_step, pair_step) / penalty
            )
            gain = np.vdot(fields, node_step) + np.vdot(transition, pair_step)
            if gain - 0.5 * upper[x] * square > 0:
                log_nodes[span], log_pairs[x], nodes[span], pairs[x] = log_n, log_p, new_nodes, new_pairs
                transition -= upper[x] * pair_step / penalty
                scores -= upper[x] * (gram[:, span] @ node_step).T
                rates[x] *= FASTER
                break
            rates[x] *= 0.5


def _marginals(log_nodes: np.ndarray, log_pairs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """P(y_t), and Σ_t P(y_t, y_{t+1})."""
    messages = [log_nodes[-1]]
    for each in log_nodes[-2::-1]:
        messages.append(each + np.logaddexp.reduce(log_pairs + messages[-1], 1))
    first, *others = messages[::-1]
    nodes, pairs = [np.exp(first - np.logaddexp.reduce(first))], np.zeros_like(log_pairs)
    for message in others:
        joint = log_pairs + message
        weights = nodes[-1][:, None] * np.exp(joint - np.logaddexp.reduce(joint, 1)[:, None])
        pairs += weights
        nodes.append(weights.sum(0))
    return np.array(nodes), pairs
