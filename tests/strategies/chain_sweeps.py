"""Dual steps of chains by definition, in NumPy: the oracle of the kernels, step by step."""

from __future__ import annotations

import numpy as np

from lmbm_torch.kernels.dual.chains import FASTER, HALVINGS, NEGLIGIBLE


def smo_sweep(problem, nodes, edges, scores, transition, order, steps):
    """Run pairwise steps on the chains in the given order.

    The arguments are those of the kernel.
    """
    gram, start, upper, penalty = problem.gram, problem.start, problem.upper, problem.coupling_penalty
    for x in order:
        if upper[x] <= 0:
            continue
        span = slice(start[x], start[x + 1])
        own, mass = gram[span, span], nodes[span]
        pairs = edges[start[x] - x : start[x + 1] - x - 1]
        wrong = np.ones_like(mass)
        wrong[np.arange(len(mass)), problem.labels[span]] = 0
        before, first = mass.copy(), np.inf
        for step in range(steps):
            fields = scores[:, span].T + wrong - upper[x] * own @ (mass - before)
            up = _best_path(fields, np.broadcast_to(transition, pairs.shape))
            allowed = np.where(pairs > NEGLIGIBLE, -transition, -np.inf)
            down = _best_path(np.where(mass > NEGLIGIBLE, -fields, -np.inf), allowed)
            rise = _score(fields, transition, up) - _score(fields, transition, down)
            first = rise if step == 0 else first
            if rise <= max(1e-12, 0.05 * first):
                break
            node_step, edge_step = _indicators(up, len(scores)), _pairs(up, len(scores))
            node_step -= _indicators(down, len(scores))
            edge_step -= _pairs(down, len(scores))
            total = edge_step.sum(0)
            square = np.vdot(node_step, own @ node_step) + np.square(total).sum() / penalty
            longest = min(mass[node_step < 0].min(initial=np.inf), pairs[edge_step < 0].min(initial=np.inf))
            amount = min(longest, rise / (upper[x] * square)) if square > 0 else longest
            mass[:] = np.maximum(mass + amount * node_step, 0)
            pairs[:] = np.maximum(pairs + amount * edge_step, 0)
            transition -= upper[x] * amount * total / penalty
        scores -= upper[x] * (gram[:, span] @ (mass - before)).T


def _best_path(fields: np.ndarray, transition: np.ndarray) -> np.ndarray:
    """Return the labelling of largest score; ``transition[t]`` starts at position t."""
    value, origins = fields[0], []
    for t in range(1, len(fields)):
        candidates = value[:, None] + transition[t - 1]
        origins.append(candidates.argmax(0))
        value = candidates.max(0) + fields[t]
    path = [int(value.argmax())]
    for origin in reversed(origins):
        path.append(int(origin[path[-1]]))
    return np.array(path[::-1])


def _score(fields: np.ndarray, transition: np.ndarray, path: np.ndarray) -> float:
    return float(fields[np.arange(len(path)), path].sum() + transition[path[:-1], path[1:]].sum())


def _indicators(path: np.ndarray, states: int) -> np.ndarray:
    return np.eye(states)[path]


def _pairs(path: np.ndarray, states: int) -> np.ndarray:
    """Return a labelling's transitions, (length − 1, states, states)."""
    pairs = np.zeros((len(path) - 1, states, states))
    pairs[np.arange(len(path) - 1), path[:-1], path[1:]] = 1
    return pairs


def gradient_sweep(problem, marginals, scores, transition, order):
    """Run exponentiated-gradient steps on the chains in the given order.

    The arguments are those of the kernel.
    """
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
    """Return P(y_t), and Σ_t P(y_t, y_{t+1})."""
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
