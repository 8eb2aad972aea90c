"""Depth-first branch and bound for Boltzmann machines, for least hinge loss and for MAP.

Both objectives are sums over labels of [r_i − a_i]_+. For a decided label, a_i = s_i z_i; for a free label,
a_i is at most |z_i|. The requirement r_i is the value from which there is no loss, minus what undecided
labels can still add to a_i. Deciding label j adds D_ji to the field of i and |D_ji| to r_i. Therefore the sum
never decreases from a node to its children, and the sum of a partial labelling bounds all completions.

* Hinge losses Σ_i [γ − s_i z_i]_+ (large_margin_boltzmann_machines_2009, problem 3.4): D = ±J, and r_i is γ
  minus the absolute couplings of i to undecided labels.
* Scores: the loss is B − score with the bound B of :mod:`~lmbm_torch.kernels.search.roof_duality`; the
  messages are part of D. The term of a pair is counted at the label that is decided later: the loss of a
  decided label stays constant (``echo`` 0). A hinge loss still changes with the neighbours (``echo`` 1).

At each node, both values of each free label are tried. If the bound for a value reaches the best known loss,
the label gets the other value. If no label is decided in this way, the search branches on the label whose
better value costs most. Each free thread takes the next example.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from lmbm_torch.kernels.jit import compiled, compiled_part, fast_part
from lmbm_torch.kernels.search import flips
from lmbm_torch.kernels.search.records import UndirectedProblem
from lmbm_torch.kernels.search.roof_duality import messages
from lmbm_torch.kernels.threads import share, stoppable

# A search with at most this number of nodes takes about 20 ms for 100 labels, and need not be interruptible.
_AT_ONCE = 100_000
# Number of examples in a call of the local search, so that the overhead of the call is small.
_TOGETHER = 32
# In the choice of the label to branch on, weight of the worse of its two bounds relative to the better one.
WORSE = 0.1
# If a search has reached its limit, tabu search follows, with one flip for this number of nodes.
NODES_TO_FLIP = 4


class Best(NamedTuple):
    """The labellings of least loss; of equal labellings, the first in lexicographic order.

    Args:
        spins: (batch, labels).
        bound: (batch,); up to rounding, no labelling is better than both ``bound`` and ``spins``: no hinge
            loss is lower, or no score is higher.
        proven: (batch,), whether the search was complete and ``spins`` are optimal.
        nodes: (batch,), number of partial labellings whose bound was computed.
    """

    spins: np.ndarray
    bound: np.ndarray
    proven: np.ndarray
    nodes: np.ndarray


class Tree(NamedTuple):
    """The search of an example.

    Args:
        fields: (labels,), fields at the root.
        room: (labels,), the requirements r_i at the root.
        up: (labels, labels), row j has the effects of label j = 1 on the fields.
        down: (labels, labels), row j has the effects of label j = 0 on the fields.
        echo: 1 if a decision also changes the fields of decided labels, else 0.
        known: (labels,), known spins; 0 for a free label.
        slack: smallest improvement that counts.
        node_limit: see :class:`UndirectedProblem`.
    """

    fields: np.ndarray
    room: np.ndarray
    up: np.ndarray
    down: np.ndarray
    echo: float
    known: np.ndarray
    slack: float
    node_limit: int


class _Path(NamedTuple):
    """The nodes from the root to the current node, by depth, and the branches not yet searched."""

    fields: np.ndarray  # (labels + 1, labels), as the next two
    room: np.ndarray
    spins: np.ndarray
    label: np.ndarray  # (labels + 1,), as the rest; −1 if all labels are decided
    spin: np.ndarray
    other: np.ndarray
    is_open: np.ndarray
    strength: np.ndarray  # (labels,)
    nodes: np.ndarray  # (1,)


def least_hinges(problem: UndirectedProblem, margin: float) -> Best:
    """Return the labellings of least hinge loss for a margin γ."""
    best = _start(problem)
    _search_each(problem, lambda example, stop: _least_hinge(problem, best, example, margin, stop))
    return best


def best_scores(problem: UndirectedProblem) -> Best:
    """Return the labellings of largest score."""
    best = _start(problem)
    _search_each(problem, lambda example, stop: _best_score(problem, best, example, stop))
    return best


def raised_scores(problem: UndirectedProblem) -> np.ndarray:
    """Return spins (batch, labels) of high score, from which :func:`best_scores` starts."""
    spins = np.empty_like(problem.fields)
    share(range(0, len(spins), _TOGETHER), lambda first: _raise(problem, spins, first))
    return spins


def _start(problem: UndirectedProblem) -> Best:
    """Allocate the record of results for all examples."""
    batch = len(problem.fields)
    return Best(
        spins=np.zeros(problem.fields.shape),
        bound=np.zeros(batch),
        proven=np.zeros(batch, np.bool_),
        nodes=np.zeros(batch, np.int64),
    )


def _search_each(problem: UndirectedProblem, search: Callable[[int, np.ndarray], None]) -> None:
    """Call ``search`` for all examples; if ``stop``, an array (1,) of bool, is set, searches end early."""
    examples = range(len(problem.fields))
    if problem.node_limit <= _AT_ONCE:
        never = np.zeros(1, np.bool_)
        share(examples, lambda example: search(example, never))
    else:
        stoppable(lambda stop: share(examples, lambda example: search(example, stop)))


@compiled
def _raise(problem, spins, first):
    for example in range(first, min(first + _TOGETHER, len(spins))):
        fields, known = problem.fields[example], problem.known[example % len(problem.known)]
        found = flips.raised(fields, problem.couplings[example % len(problem.couplings)], known)
        for label in range(len(found)):
            spins[example, label] = found[label]


@compiled
def _least_hinge(problem, best, example, margin, stop):
    fields, known = problem.fields[example], problem.known[example % len(problem.known)]
    couplings = problem.couplings[example % len(problem.couplings)]
    labels, largest = len(fields), 0.0
    room, against = np.empty(labels), np.empty((labels, labels))
    for i in range(labels):
        weight = 0.0
        for j in range(labels):
            weight += abs(couplings[i, j])
            against[i, j] = -couplings[i, j]
        room[i], largest = margin - weight, max(largest, abs(fields[i]) + weight)
    slack = problem.round_off * (margin + largest)
    tree = Tree(fields, room, couplings, against, 1.0, known, slack, problem.node_limit)
    _solve(tree, flips.improved(fields, couplings, margin, known), best, example, stop)


@compiled
def _best_score(problem, best, example, stop):
    fields, known = problem.fields[example], problem.known[example % len(problem.known)]
    couplings = problem.couplings[example % len(problem.couplings)]
    labels, largest, total = len(fields), 0.0, 0.0
    settled = fields.copy()
    for i in range(labels):
        weight = 0.0
        for j in range(labels):
            settled[i] += known[j] * couplings[j, i]
            weight += abs(couplings[i, j])
        largest, total = max(largest, abs(fields[i]) + weight), total + weight / 2
    slack = problem.round_off * largest
    moves = messages(settled, couplings, known, slack)
    moved, room = fields.copy(), np.empty(labels)
    up, down = np.empty((labels, labels)), np.empty((labels, labels))
    for i in range(labels):
        for j in range(labels):
            moved[i] += moves[i, j]
            up[j, i] = couplings[j, i] - moves[i, j]
            down[j, i] = -couplings[j, i] - moves[i, j]
        room[i] = abs(moved[i])
        total += room[i]
    tree = Tree(moved, room, up, down, 0.0, known, slack, problem.node_limit)
    _solve(tree, flips.raised(fields, couplings, known), best, example, stop)
    if not best.proven[example]:
        flips.tabu(fields, couplings, known, best.spins[example], problem.node_limit // NODES_TO_FLIP)
    best.bound[example] = total - best.bound[example]


@compiled_part
def _solve(tree, spins, best, example, stop):
    path = _path(tree)
    _set_root(tree, path, spins)
    loss = _bound(path, 0)
    _set_root(tree, path, tree.known)
    is_found, open_bound = _search(tree, path, spins, loss - tree.slack, False, stop)
    if is_found:
        _set_root(tree, path, spins)
        loss = _bound(path, 0)
    best.bound[example], best.proven[example] = min(open_bound, loss), open_bound == np.inf
    if open_bound == np.inf:
        known = tree.known.copy()
        for label in range(len(known)):
            if known[label] == 0 and spins[label] > 0:
                known[label] = -1.0
                _set_root(tree, path, known)
                _search(tree, path, spins, loss + tree.slack, True, stop)
            known[label] = spins[label]
    best.nodes[example] = path.nodes[0]
    for label in range(len(spins)):
        best.spins[example, label] = spins[label]


@compiled_part
def _path(tree):
    labels = len(tree.fields)
    strength = np.zeros(labels)
    for i in range(labels):
        for j in range(labels):
            strength[i] += abs(tree.up[i, j])
    return _Path(
        np.zeros((labels + 1, labels)),
        np.zeros((labels + 1, labels)),
        np.zeros((labels + 1, labels)),
        np.zeros(labels + 1, np.int64),
        np.zeros(labels + 1),
        np.zeros(labels + 1),
        np.zeros(labels + 1, np.bool_),
        strength,
        np.zeros(1, np.int64),
    )


@compiled_part
def _set_root(tree, path, known):
    for i in range(len(known)):
        path.fields[0, i], path.room[0, i], path.spins[0, i] = tree.fields[i], tree.room[i], 0.0
    for label in range(len(known)):
        if known[label] != 0:
            _decide(tree, path, 0, label, known[label])


@compiled_part
def _search(tree, path, spins, threshold, anyone, stop):
    """Return whether a labelling below ``threshold`` was found, and a bound for all other labellings."""
    depth, is_found = 0, False
    while True:
        if path.nodes[0] >= tree.node_limit or stop[0]:
            open_bound = _bound(path, depth)
            for before in range(depth):
                if path.is_open[before]:
                    open_bound = min(open_bound, path.other[before])
            return is_found, open_bound
        path.is_open[depth] = False
        alive = _expand(tree, path, depth, threshold, spins)
        if alive and path.label[depth] >= 0:
            path.is_open[depth] = True
            _go_down(tree, path, depth, path.spin[depth])
            depth += 1
            continue
        if alive:
            is_found, threshold = True, _bound(path, depth) - tree.slack
            for label in range(len(spins)):
                spins[label] = path.spins[depth, label]
            if anyone:
                return is_found, np.inf
        depth -= 1
        while depth >= 0 and not (path.is_open[depth] and path.other[depth] < threshold):
            depth -= 1
        if depth < 0:
            return is_found, np.inf
        path.is_open[depth] = False
        _go_down(tree, path, depth, -path.spin[depth])
        depth += 1


@compiled_part
def _expand(tree, path, depth, threshold, incumbent):
    """Decide forced labels, and choose a label to branch on; return False if both values are excluded."""
    spins = path.spins[depth]
    forced = np.zeros(len(spins))
    while _bound(path, depth) < threshold:
        path.label[depth], best, count = -1, -np.inf, 0
        for label in range(len(spins)):
            path.nodes[0] += 2 if spins[label] == 0 else 0
        for label in range(len(spins)):
            forced[label] = 0.0
            if spins[label] != 0:
                continue
            up, down = _tried(tree, path, depth, label)
            if up >= threshold and down >= threshold:
                return False
            if up >= threshold or down >= threshold:
                forced[label] = -1.0 if up >= threshold else 1.0
                count += 1
                continue
            key, lead = min(up, down) + WORSE * max(up, down), path.strength[label]
            if key > best + tree.slack or (
                key >= best - tree.slack and lead > path.strength[path.label[depth]]
            ):
                path.spin[depth] = incumbent[label] if abs(up - down) <= tree.slack else np.sign(down - up)
                path.label[depth], path.other[depth], best = label, max(up, down), key
        if count == 0:
            return True
        for label in range(len(spins)):
            if forced[label] != 0:
                _decide(tree, path, depth, label, forced[label])
    return False


@fast_part
def _tried(tree, path, depth, label):
    """Return the bounds of the node if a free label is 1 and if it is 0."""
    fields, room, spins, echo = path.fields[depth], path.room[depth], path.spins[depth], tree.echo
    added, removed = tree.up[label], tree.down[label]
    up, down = 0.0, 0.0
    for i in range(len(fields)):
        is_free = spins[i] == 0
        share = 1.0 if is_free else echo
        change = share * added[i]
        field = fields[i] + change
        up += max(room[i] + abs(change) - (abs(field) if is_free else spins[i] * field), 0.0)
        change = share * removed[i]
        field = fields[i] + change
        down += max(room[i] + abs(change) - (abs(field) if is_free else spins[i] * field), 0.0)
    own = max(room[label] - abs(fields[label]), 0.0)
    up += max(room[label] - fields[label], 0.0) - own
    return up, down + max(room[label] + fields[label], 0.0) - own


@fast_part
def _bound(path, depth):
    fields, room, spins = path.fields[depth], path.room[depth], path.spins[depth]
    bound = 0.0
    for i in range(len(fields)):
        bound += max(room[i] - (abs(fields[i]) if spins[i] == 0 else spins[i] * fields[i]), 0.0)
    return bound


@fast_part
def _decide(tree, path, depth, label, spin):
    fields, room, spins = path.fields[depth], path.room[depth], path.spins[depth]
    change = tree.up[label] if spin > 0 else tree.down[label]
    for i in range(len(fields)):
        share = 1.0 if spins[i] == 0 else tree.echo
        fields[i] += share * change[i]
        room[i] += share * abs(change[i])
    spins[label] = spin


@compiled_part
def _go_down(tree, path, depth, spin):
    """Set up the child node, in which the label chosen at ``depth`` is decided."""
    for i in range(len(tree.fields)):
        path.fields[depth + 1, i], path.room[depth + 1, i] = path.fields[depth, i], path.room[depth, i]
        path.spins[depth + 1, i] = path.spins[depth, i]
    _decide(tree, path, depth + 1, path.label[depth], spin)
