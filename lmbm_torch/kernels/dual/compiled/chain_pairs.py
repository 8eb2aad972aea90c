"""Pairwise steps on the factored dual of max-margin Markov networks of chains, compiled for the CPU."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from lmbm_torch.kernels.dual.plain.chain_pairs import NEGLIGIBLE
from lmbm_torch.kernels.jit import SUMS, njit


class Chains(NamedTuple):
    """All chains; chain x has the positions from ``start[x]`` up to ``start[x + 1]``."""

    gram: np.ndarray
    start: np.ndarray
    labels: np.ndarray
    upper: np.ndarray
    coupling_penalty: float


def compilable(problem: Any) -> Chains:
    """The record that compiled code takes in place of the solver's problem."""
    return Chains(*(getattr(problem, name) for name in Chains._fields))


@njit(nogil=True, cache=True)
def best_path(fields, transition, support, sign, origin, path):
    """The labelling of largest sign · score among those that ``support`` has; returns its score.

    ``support``, (length, states) and (length − 1, states, states), bounds what is allowed: its entries must
    be above ``NEGLIGIBLE``; empty ones allow everything.
    """
    nodes, edges = support
    length, states = fields.shape
    before, after = np.empty(states), np.empty(states)
    for s in range(states):
        allowed = len(nodes) == 0 or nodes[0, s] > NEGLIGIBLE
        before[s] = sign * fields[0, s] if allowed else -np.inf
    for t in range(1, length):
        after[:] = -np.inf
        for r in range(states):
            for s in range(states):
                if len(edges) and edges[t - 1, r, s] <= NEGLIGIBLE:
                    continue
                value = before[r] + sign * transition[r, s]
                if value > after[s]:
                    after[s] = value
                    origin[t, s] = r
        for s in range(states):
            before[s] = after[s] + sign * fields[t, s]
    path[length - 1] = np.argmax(before)
    for t in range(length - 1, 0, -1):
        path[t - 1] = origin[t, path[t]]
    return sign * before[path[length - 1]]


@njit(nogil=True, cache=True)
def longest_step(nodes, edges, up, down):
    """The largest mass that can leave the labelling ``down`` for ``up``."""
    length = len(up)
    longest = np.inf
    for t in range(length):
        if up[t] != down[t]:
            longest = min(longest, nodes[t, down[t]])
        if t + 1 < length and (up[t] != down[t] or up[t + 1] != down[t + 1]):
            longest = min(longest, edges[t, down[t], down[t + 1]])
    return longest


@njit(nogil=True, cache=True)
def count_pairs(path, amount, pairs):
    """Add ``amount`` for each transition of a labelling."""
    for t in range(len(path) - 1):
        pairs[path[t], path[t + 1]] += amount


@njit(nogil=True, cache=True)
def curvature(gram, up, down, penalty, pairs):
    """‖F(up) − F(down)‖², transitions divided by their penalty; ``pairs`` is left as it was, at zero."""
    total = 0.0
    for t in range(len(up)):
        if up[t] == down[t]:
            continue
        for u in range(len(up)):
            if up[u] != down[u]:
                agree = (up[t] == up[u]) + (down[t] == down[u])
                total += gram[t, u] * (agree - (up[t] == down[u]) - (down[t] == up[u]))
    count_pairs(up, 1.0, pairs)
    count_pairs(down, -1.0, pairs)
    for path in (up, down):
        for t in range(len(path) - 1):
            value = pairs[path[t], path[t + 1]]
            total += value * value / penalty
            pairs[path[t], path[t + 1]] = 0.0
    return total


@njit(nogil=True, cache=True)
def move(nodes, edges, path, amount):
    """Add mass to a labelling, or take it from one; what is left of a mass never falls below zero."""
    for t in range(len(path)):
        nodes[t, path[t]] = max(nodes[t, path[t]] + amount, 0.0)
        if t + 1 < len(path):
            edges[t, path[t], path[t + 1]] = max(edges[t, path[t], path[t + 1]] + amount, 0.0)


@njit(nogil=True, cache=True)
def visit(gram, fields, transition, nodes, edges, upper, penalty, steps, change, pairs):
    """Up to ``steps`` steps on one chain; ``change`` collects what its marginals gain."""
    length, states = fields.shape
    everything = (nodes[:0], edges[:0])
    up, down = np.empty(length, np.int64), np.empty(length, np.int64)
    origin = np.empty((length, states), np.int64)
    first = 0.0
    for step in range(steps):
        rise = best_path(fields, transition, everything, 1.0, origin, up)
        rise -= best_path(fields, transition, (nodes, edges), -1.0, origin, down)
        if step == 0:
            first = rise
        # The rise that is left is of the order of rounding, or little of what there was.
        if rise <= max(1e-12, 0.05 * first):
            return
        square = upper * curvature(gram, up, down, penalty, pairs)
        longest = longest_step(nodes, edges, up, down)
        amount = min(longest, rise / square) if square > 0.0 else longest
        # In this order: what the labellings share may have less mass than the step.
        move(nodes, edges, up, amount)
        move(nodes, edges, down, -amount)
        count_pairs(up, -upper * amount / penalty, transition)
        count_pairs(down, upper * amount / penalty, transition)
        for t in range(length):
            if up[t] == down[t]:
                continue
            change[t, up[t]] += amount
            change[t, down[t]] -= amount
            for u in range(length):
                fields[u, up[t]] -= upper * amount * gram[t, u]
                fields[u, down[t]] += upper * amount * gram[t, u]


@njit(nogil=True, cache=True, fastmath=SUMS)
def add_row(row, amount, scores):
    """scores += amount · row."""
    for i in range(len(row)):
        scores[i] += amount * row[i]


@njit(nogil=True, cache=True)
def read_fields(scores, labels, first, last, fields):
    """A chain's scores (states, positions) → (length, states), plus 1 for all labels but the true ones."""
    for t in range(first, last):
        for s in range(len(scores)):
            fields[t - first, s] = scores[s, t] + (labels[t] != s)


def smo_sweep(problem, nodes, edges, scores, transition, order, steps):
    """Visit the chains in the order given; changes nodes, edges, scores and transition in place.

    Args:
        problem: a :class:`lmbm_torch.solvers.chains.kernel_problem.ChainKernelProblem`.
        nodes: (positions, states); edges: (steps, states, states).
        scores: (states, positions); transition: (states, states): what the marginals' weights give.
        steps: on one chain in a visit, at most.
    """
    _sweep(compilable(problem), nodes, edges, scores, transition, order, steps)


@njit(nogil=True, cache=True)
def _sweep(chains, nodes, edges, scores, transition, order, steps):
    gram, start, labels, upper, penalty = chains
    states = len(scores)
    longest = np.max(start[1:] - start[:-1])
    all_fields, all_change = np.empty((longest, states)), np.empty((longest, states))
    pairs = np.zeros((states, states))
    for x in order:
        if upper[x] <= 0.0:
            continue
        first, last = start[x], start[x + 1]
        fields, change = all_fields[: last - first], all_change[: last - first]
        read_fields(scores, labels, first, last, fields)
        change[:] = 0.0
        own = gram[first:last, first:last]
        visit(
            own,
            fields,
            transition,
            nodes[first:last],
            edges[first - x : last - x - 1],
            upper[x],
            penalty,
            steps,
            change,
            pairs,
        )
        for t in range(last - first):
            for s in range(states):
                if change[t, s] != 0.0:
                    add_row(gram[first + t], -upper[x] * change[t, s], scores[s])
