"""Pairwise steps on the factored dual of chains in plain NumPy: the readable reference.

The same function with the same arguments as the compiled one.
"""

from __future__ import annotations

import numpy as np

# Mass can be taken from a labelling if all its marginals are above this.
NEGLIGIBLE = 1e-12


def smo_sweep(problem, nodes, edges, scores, transition, order, steps):
    """Visit the chains in the order given; changes nodes, edges, scores and transition in place."""
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
    """The labelling of largest score; ``transition[t]`` leads from position t on."""
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
    """A labelling's transitions, (length − 1, states, states)."""
    pairs = np.zeros((len(path) - 1, states, states))
    pairs[np.arange(len(path) - 1), path[:-1], path[1:]] = 1
    return pairs
