"""Branch and bound for directed models with many labels, each with few parents.

The search is that of :mod:`~lmbm_torch.kernels.search.directed`, but a decision changes only the fields and
bounds of the label's children, in place. Earlier values are stored for each edge, and restored by
backtracking: on a path from the root, each label is decided only once.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from lmbm_torch.kernels.jit import inlined, njit
from lmbm_torch.kernels.search.losses import label_loss, least_loss, of, record

# Smallest number of labels; with fewer labels, the arrays of the other search fit into the first-level cache.
LABELS = 128
# If a larger share of the possible edges exists, the other search is as fast.
DENSITY = 0.25


class Edges(NamedTuple):
    """The children of each label; label j has the entries ``start[j]`` up to ``start[j + 1]``."""

    start: np.ndarray  # (labels + 1,)
    child: np.ndarray  # (edges,)
    weight: np.ndarray  # (edges,)


class _Tables(NamedTuple):
    """The tables of a thread for the current example."""

    spins: np.ndarray  # (labels,)
    fields: np.ndarray  # (labels,), the part of each field that decided labels determine
    least: np.ndarray  # (labels,), the least possible loss of each label
    right: np.ndarray  # (labels,), bounds of right branches not yet searched, infinite for others
    undecided: np.ndarray  # (labels,), how much undecided parents can change each field at the root
    rest: np.ndarray  # (edges,), the same for the child after the decision of the edge's parent
    last_field: np.ndarray  # (edges,), the child's field before this decision
    last_least: np.ndarray  # (edges,), the child's least loss before this decision


def few_edges(problem: Any) -> Edges | None:
    """Return the edges of a problem of NumPy arrays; None for few labels, or labels with many parents."""
    labels = problem.fields.shape[1]
    if labels < LABELS or len(problem.children) > 1 or len(problem.clique_child):
        return None
    # Row j of this table has the effects of the spin of parent j on the fields of its children.
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
    """Set the fields at the root, and how much undecided parents can still change fields at each edge."""
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
    """Decide a free label, and return the new bound; ``again`` is true for the second spin of the label."""
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
    """Return the loss of a complete labelling, computed again to remove accumulated round-off."""
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
