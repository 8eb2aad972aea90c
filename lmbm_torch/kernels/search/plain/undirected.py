"""Depth-first branch and bound for Boltzmann machines, hinge rule and MAP alike: the readable reference.

Both objectives are sums over labels of [r_i − a_i]_+. A decided label agrees with the field by a_i = s_i z_i,
a free label by at most |z_i|. r_i is the agreement without a loss, less the possible additions of open
labels. Deciding label j adds D_ji to the field of i and |D_ji| to r_i, so no sum decreases on the way down,
and the sum of a partial labelling bounds all completions.

* Hinge losses Σ_i [γ − s_i z_i]_+ (large_margin_boltzmann_machines_2009, problem 3.4): D = ±J, and r_i is γ
  less all open couplings of i.
* Scores: the loss is B − score with the bound B of :mod:`~lmbm_torch.kernels.search.plain.roof_duality`; the
  messages are part of D. A pair's term is charged to the label decided later, so the loss of a decided label
  stays constant (``echo`` 0); a hinge still changes with the neighbours (``echo`` 1).

At every node each free label is tried both ways. A way with a bound at the best known loss is closed, and the
opposite way is taken; if none is closed, the search continues with the label of the largest cost of the
better way.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from lmbm_torch.kernels.search.plain import flips
from lmbm_torch.kernels.search.plain.roof_duality import messages as messages
from lmbm_torch.kernels.search.plain.roof_duality import persistent as persistent

# Weight of the worse bound of a label relative to the better bound in the choice of a branch.
WORSE = 0.1
# Nodes of a search that has met its limit, for each flip of the tabu search that follows.
NODES_TO_FLIP = 4


class UndirectedProblem(NamedTuple):
    """The problem of a search; arrays are float64, an axis ``batch | 1`` has length 1 if shared.

    Args:
        fields: (batch, labels).
        couplings: (batch | 1, labels, labels), J, symmetric with a zero diagonal.
        known: (batch | 1, labels), given spins; 0 for a free label.
        round_off: losses that differ by less than a share ``round_off`` of a label's largest loss are tied.
        node_limit: number of computed bounds after which a search ends.
    """

    fields: np.ndarray
    couplings: np.ndarray
    known: np.ndarray
    round_off: float
    node_limit: int


class Best(NamedTuple):
    """The labellings of least loss; among ties the first in the order of 0 before 1, label by label.

    Args:
        spins: (batch, labels).
        bound: (batch,), up to rounding no labelling has a lower hinge loss, or a higher score, than the
            better one of ``bound`` and ``spins``.
        proven: (batch,), whether the search has ended by itself.
        nodes: (batch,), partial labellings whose bound was computed.
    """

    spins: np.ndarray
    bound: np.ndarray
    proven: np.ndarray
    nodes: np.ndarray


class Tree(NamedTuple):
    """The search of an example.

    Args:
        fields: (labels,), without decisions.
        room: (labels,), the r_i without decisions.
        up: (labels, labels), row j: effect of label j = 1 on the fields.
        down: (labels, labels), row j: effect of label j = 0 on the fields.
        echo: share of the effect on labels decided before.
        known: (labels,), given spins.
        slack: least improvement that counts.
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


class _Node(NamedTuple):
    """A partial labelling; ``spins`` are 0 for open labels."""

    fields: np.ndarray
    room: np.ndarray
    spins: np.ndarray


def start(problem: UndirectedProblem) -> Best:
    """Return an empty result record for all examples."""
    batch = len(problem.fields)
    return Best(
        spins=np.zeros(problem.fields.shape),
        bound=np.zeros(batch),
        proven=np.zeros(batch, np.bool_),
        nodes=np.zeros(batch, np.int64),
    )


def least_hinges(problem: UndirectedProblem, margin: float) -> Best:
    """Return the labellings of least hinge loss at a margin γ."""
    best = start(problem)
    for example, (fields, couplings, known) in enumerate(_examples(problem)):
        weights = np.abs(couplings).sum(1)
        slack = problem.round_off * (margin + (np.abs(fields) + weights).max())
        tree = Tree(fields, margin - weights, couplings, -couplings, 1.0, known, slack, problem.node_limit)
        _solve(tree, flips.improved(fields, couplings, margin, known), best, example)
    return best


def best_scores(problem: UndirectedProblem) -> Best:
    """Return the labellings of largest score."""
    best = start(problem)
    for example, (fields, couplings, known) in enumerate(_examples(problem)):
        weights = np.abs(couplings).sum(1)
        largest = (np.abs(fields) + weights).max()
        slack = problem.round_off * largest
        moves = messages(fields + known @ couplings, couplings, known, slack)
        moved, up, down = fields + moves.sum(1), couplings - moves.T, -couplings - moves.T
        tree = Tree(moved, np.abs(moved), up, down, 0.0, known, slack, problem.node_limit)
        _solve(tree, flips.raised(fields, couplings, known), best, example)
        if not best.proven[example]:
            most_flips = problem.node_limit // NODES_TO_FLIP
            flips.tabu(fields, couplings, known, best.spins[example], most_flips)
        best.bound[example] = np.abs(moved).sum() + weights.sum() / 2 - best.bound[example]
    return best


def raised_scores(problem: UndirectedProblem) -> np.ndarray:
    """Return the labellings (batch, labels), as spins, from which :func:`best_scores` begins."""
    return np.stack([flips.raised(*example) for example in _examples(problem)])


def _examples(problem: UndirectedProblem):
    """Yield fields, couplings and known spins of each example."""
    for example, fields in enumerate(problem.fields):
        yield (
            fields,
            problem.couplings[example % len(problem.couplings)],
            problem.known[example % len(problem.known)],
        )


def _solve(tree: Tree, first: np.ndarray, best: Best, example: int) -> None:
    """Search from a labelling, and settle ties; write the result to ``best``, with losses as bounds."""
    spins, loss = first, _bound(_root(tree, first))
    found, open_bound, nodes = _search(tree, first, loss - tree.slack, 0, anyone=False)
    if found is not None:
        spins, loss = found, _bound(_root(tree, found))
    if open_bound == np.inf:
        spins, nodes = _first_of_ties(tree, spins, loss + tree.slack, nodes)
    best.spins[example], best.nodes[example] = spins, nodes
    best.bound[example], best.proven[example] = min(open_bound, loss), open_bound == np.inf


def _first_of_ties(tree: Tree, spins: np.ndarray, ceiling: float, nodes: int) -> tuple[np.ndarray, int]:
    """Return the labelling below ``ceiling`` with 0 in place of 1 at the first possible label."""
    known = tree.known.copy()
    for label in range(len(known)):
        if known[label] == 0 and spins[label] > 0:
            known[label] = -1
            found, _, nodes = _search(tree._replace(known=known), spins, ceiling, nodes, anyone=True)
            spins = spins if found is None else found
        known[label] = spins[label]
    return spins, nodes


def _search(
    tree: Tree, incumbent: np.ndarray, threshold: float, nodes: int, *, anyone: bool
) -> tuple[np.ndarray | None, float, int]:
    """Return the best labelling below ``threshold``, or any; a bound on the rest; the nodes."""
    found, path, node = None, [], _root(tree, tree.known)
    while True:
        if nodes >= tree.node_limit:
            return found, min([_bound(node), *(other for *_, other in path)]), nodes
        node, branch, computed = _expanded(tree, node, threshold, incumbent if found is None else found)
        nodes += computed
        if node is not None and branch is not None:
            label, spin, other = branch
            path.append((node, label, -spin, other))
            node = _decided(tree, node, label, float(spin))
            continue
        if node is not None:
            found, threshold = node.spins, _bound(node) - tree.slack
            if anyone:
                return found, np.inf, nodes
        while path and path[-1][-1] >= threshold:
            path.pop()
        if not path:
            return found, np.inf, nodes
        parent, label, spin, _ = path.pop()
        node = _decided(tree, parent, label, spin)


def _expanded(tree: Tree, node: _Node, threshold: float, incumbent: np.ndarray):
    """Return the node with forced labels decided, or None at a dead end; a branch; the number of bounds.

    A branch is a label, the better spin and the bound of the opposite spin; None if all labels are decided.
    """
    computed = 0
    while _bound(node) < threshold:
        free = np.flatnonzero(node.spins == 0)
        if not len(free):
            return node, None, computed
        up, down = _tried(tree, node, tree.up, 1.0)[free], _tried(tree, node, tree.down, -1.0)[free]
        computed += 2 * len(free)
        if ((up >= threshold) & (down >= threshold)).any():
            break
        forced = (up >= threshold) | (down >= threshold)
        if not forced.any():
            return node, _branch(tree, free, up, down, incumbent), computed
        for label, is_closed in zip(free[forced], (up >= threshold)[forced], strict=True):
            node = _decided(tree, node, label, -1.0 if is_closed else 1.0)
    return None, None, computed


def _branch(tree: Tree, free: np.ndarray, up: np.ndarray, down: np.ndarray, incumbent: np.ndarray):
    """Choose the free label to branch on by the two bounds; ties follow the best labelling."""
    strength, chosen, best, most = np.abs(tree.up).sum(1)[free], -1, -np.inf, np.maximum(up, down)
    for place, key in enumerate(np.minimum(up, down) + WORSE * most):
        ties = key >= best - tree.slack and strength[place] > strength[chosen]
        if key > best + tree.slack or ties:
            chosen, best = place, key
    rise = down[chosen] - up[chosen]
    spin = incumbent[free[chosen]] if abs(rise) <= tree.slack else np.sign(rise)
    return free[chosen], spin, most[chosen]


def _tried(tree: Tree, node: _Node, added: np.ndarray, spin: float) -> np.ndarray:
    """Return the bound for each label set to a spin, (labels,); meaningful for free labels only."""
    change = np.where(node.spins == 0, 1.0, tree.echo) * added
    agreement = _agreement(node.fields + change, node.spins)
    own = np.maximum(node.room - spin * node.fields, 0) - np.maximum(node.room - np.abs(node.fields), 0)
    return np.maximum(node.room + np.abs(change) - agreement, 0).sum(1) + own


def _agreement(fields: np.ndarray, spins: np.ndarray) -> np.ndarray:
    """Return s_i z_i, or the largest possible value."""
    return np.where(spins == 0, np.abs(fields), spins * fields)


def _bound(node: _Node) -> float:
    return float(np.maximum(node.room - _agreement(node.fields, node.spins), 0).sum())


def _root(tree: Tree, known: np.ndarray) -> _Node:
    """Return the node with the known labels decided, one after another."""
    node = _Node(tree.fields, tree.room, np.zeros(len(known)))
    for label in np.flatnonzero(known).tolist():
        node = _decided(tree, node, label, float(known[label]))
    return node


def _decided(tree: Tree, node: _Node, label: int, spin: float) -> _Node:
    """Return the node with one more label decided."""
    change = np.where(node.spins == 0, 1.0, tree.echo) * (tree.up if spin > 0 else tree.down)[label]
    spins = node.spins.copy()
    spins[label] = spin
    return _Node(node.fields + change, node.room + np.abs(change), spins)
