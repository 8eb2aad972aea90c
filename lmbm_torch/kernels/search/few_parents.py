"""The search of directed models with many labels, each with few parents.

Visits the nodes of :mod:`~lmbm_torch.kernels.search.directed`, but a decision touches only the
fields and bounds of the label's children, in place. Earlier values are stored with the edges: every label is
decided once on the path to a leaf, so one entry for each edge is enough and backtracking is exact.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from lmbm_torch.kernels.jit import inlined, njit
from lmbm_torch.kernels.search.losses import label_loss, least_loss, of, record

# Least labels; with fewer labels the tables of all labels fit into the first-level cache.
LABELS = 128
# Share of possible parents from which a step over all labels is as fast.
DENSITY = 0.25


class Edges(NamedTuple):
    """The children of each label; label j has the entries ``start[j]`` up to ``start[j + 1]``."""

    start: np.ndarray  # (labels + 1,)
    child: np.ndarray  # (edges,)
    weight: np.ndarray  # (edges,)


class _Tables(NamedTuple):
    """The tables of a thread for the current example."""

    spins: np.ndarray  # (labels,)
    fields: np.ndarray  # (labels,), what is settled of each
    least: np.ndarray  # (labels,), the least loss of each
    right: np.ndarray  # (labels,), bounds of the right branches still open, infinite for the others
    undecided: np.ndarray  # (labels,), how much its parents can still change each field before the search
    rest: np.ndarray  # (edges,), the same once the edge's parent is decided
    last_field: np.ndarray  # (edges,), the child's field before that
    last_least: np.ndarray  # (edges,), its least loss before that


def few_edges(problem: Any) -> Edges | None:
    """Return the edges of a problem of NumPy arrays, or None unless many labels have few shared parents."""
    labels = problem.fields.shape[1]
    if labels < LABELS or len(problem.children) > 1 or len(problem.clique_child):
        return None
    # Row j of a (labels, labels) table: effects of parent j's spin on the children's fields.
    children = problem.children[0].ravel()
    places = np.flatnonzero(children != 0)
    if 2 * len(places) > DENSITY * labels**2:
        return None
    start = np.searchsorted(places, labels * np.arange(labels + 1))
    return Edges(start, places % labels, children[places])


@njit(nogil=True, cache=True, error_model="numpy")
def search_rows(problem, edges, found, first, last, stop):
    """Search for the examples from ``first`` up to ``last``."""
    labels, count = problem.fields.shape[1], len(edges.child)
    tables = _Tables(
        spins=np.empty(labels),
        fields=np.empty(labels),
        least=np.empty(labels),
        right=np.empty(labels),
        undecided=np.empty(labels),
        rest=np.empty(count),
        last_field=np.empty(count),
        last_least=np.empty(count),
    )
    for example in range(first, last):
        _start(problem, edges, tables, example)
        _search_example(problem, edges, tables, found, example, stop)


@inlined
def _start(problem, edges, tables, example):
    """Set the fields before the first decision, and the possible later changes from each edge on."""
    known = of(problem.known, example)
    tables.undecided[:] = 0.0
    for t in range(len(known)):
        tables.spins[t], tables.right[t] = known[t], np.inf
        tables.fields[t] = problem.fields[example, t]
    for j in range(len(known) - 1, -1, -1):
        for e in range(edges.start[j], edges.start[j + 1]):
            t = edges.child[e]
            tables.rest[e] = tables.undecided[t]
            if known[j] == 0:
                tables.undecided[t] += abs(edges.weight[e])
            else:
                tables.fields[t] += known[j] * edges.weight[e]


@inlined
def _decide(problem, edges, tables, known, position, bound, again):
    """Return the bound after a free label's decision; ``again`` marks the second spin."""
    spin, hinge = tables.spins[position], (problem.margin, problem.temperature)
    for e in range(edges.start[position], edges.start[position + 1]):
        t = edges.child[e]
        if not again:
            tables.last_field[e], tables.last_least[e] = tables.fields[t], tables.least[t]
        field = tables.last_field[e] + spin * edges.weight[e]
        tables.fields[t] = field
        tables.least[t] = least_loss(hinge, known[t], field, tables.rest[e])
        bound += tables.least[t] - tables.last_least[e]
    return bound


@inlined
def _undo(edges, tables, position):
    for e in range(edges.start[position], edges.start[position + 1]):
        tables.fields[edges.child[e]] = tables.last_field[e]
        tables.least[edges.child[e]] = tables.last_least[e]


@inlined
def _total(problem, tables):
    """Return the loss of a complete labelling, without the bounds' accumulated round-off."""
    hinge, total = (problem.margin, problem.temperature), 0.0
    for t in range(len(tables.spins)):
        total += label_loss(hinge, tables.spins[t] * tables.fields[t])
    return total


@inlined
def _search_example(problem, edges, tables, found, example, stop):
    known, losses, last = of(problem.known, example), found.losses[example], len(tables.spins) - 1
    spins, fields, right = tables.spins, tables.fields, tables.right
    bound, largest, hinge = 0.0, 0.0, (problem.margin, problem.temperature)
    for t in range(last + 1):
        tables.least[t] = least_loss(hinge, known[t], fields[t], tables.undecided[t])
        bound += tables.least[t]
        largest = max(largest, abs(fields[t]) + tables.undecided[t])
    slack = problem.round_off * label_loss(hinge, -largest)
    threshold, nodes, position, left = np.inf, 0, 0, True
    while position >= 0 and not stop[0]:
        if nodes >= problem.node_limit and losses[-1] < np.inf:
            found.limited[example] = True
            found.bound[example] = bound if left else np.inf
            for t in range(last + 1):
                found.bound[example] = min(found.bound[example], right[t])
            break
        if left and known[position] == 0:
            field = fields[position]
            spins[position] = 1.0 if field >= 0 else -1.0
            right[position] = bound - label_loss(hinge, abs(field)) + label_loss(hinge, -abs(field))
            bound = _decide(problem, edges, tables, known, position, bound, False)
        elif not left:
            spins[position] *= -1
            bound, right[position] = right[position], np.inf
            bound = _decide(problem, edges, tables, known, position, bound, True)
        nodes += 1
        if position == last:
            bound = _total(problem, tables)
            if bound < threshold:
                record(losses, found.labels[example], bound, spins)
                if losses[-1] < np.inf:
                    threshold = min(losses[-1], problem.ceiling) - slack
        left = position < last and bound < threshold
        if left:
            position += 1
        else:
            while position >= 0 and right[position] >= threshold:
                if known[position] == 0:
                    _undo(edges, tables, position)
                position -= 1
    found.nodes[example] = nodes
    found.bound[example] = min(found.bound[example], losses[-1], problem.ceiling)
