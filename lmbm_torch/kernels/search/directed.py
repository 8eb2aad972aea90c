"""Depth-first branch and bound over the binary labels of directed models, example by example.

The labels are in topological order. The search minimises Σ_t ℓ(m_t), m_t = s_t z_t, where the field z_t
depends on the spins before t, and ℓ(m) = T softplus((γ − m)/T), which is the hinge [γ − m]_+ at temperature T
= 0 (lmbm_and_lmsbn_2010, Algorithm 2). If the labels before position d are decided, the field of a later
label t can still change by R_dt, the sum of the absolute weights of undecided parents. Therefore the loss is
at least ℓ(|z_t| + R_dt), or ℓ(s_t z_t + R_dt) for a known spin. A node (a partial labelling) is pruned if the
loss of decided labels plus these bounds is not below the best known loss. The left branch takes the spin of
smaller loss. The bound of the right branch is that of the left branch, with the loss of one label exchanged.

Tighter bounds are not useful for trained models: linear models of Scene and Yeast (6 and 14 labels) need 6.6
and 19 nodes per example, and bounds for pairs of labels save 1 % of the nodes in 1.3 and 1.7 times the time.

Each free thread takes the next few examples, because some searches take a thousand times as long as most.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lmbm_torch.kernels.jit import inlined, njit, part
from lmbm_torch.kernels.search import few_parents
from lmbm_torch.kernels.search.losses import label_loss, least_loss, of, record
from lmbm_torch.kernels.search.records import Found, SearchProblem
from lmbm_torch.kernels.threads import share, stoppable

_CHUNKS_PER_THREAD = 8
# With at most this number of labellings, a search takes about 10 ms, and need not be interruptible.
_AT_ONCE = 100_000
# Number of updates of fields in the time that another thread needs to start.
_FIELDS_AT_ONCE = 30_000
# With at most this number of labellings of all examples, a single thread is fastest.
_ALONE = 20_000


def search(problem: SearchProblem) -> Found:
    """Return the labellings of least loss for tensors on the CPU."""
    arrays: dict[str, Any] = {
        name: value.contiguous().numpy() if isinstance(value, Tensor) else value
        for name, value in problem._asdict().items()
    }
    found: Any = search_arrays(SearchProblem(**arrays))
    return Found(*map(torch.from_numpy, found))


def search_arrays(compiled: Any) -> Found:
    """Run :func:`search` on contiguous NumPy arrays, because conversions are slow for single rows."""
    batch, labels = compiled.fields.shape
    if labels < 64 and batch * 2**labels <= _AT_ONCE:
        return _search(compiled, np.zeros(1, np.bool_))
    # First search with a small limit of nodes, enough for most examples, without interruption.
    nodes = _FIELDS_AT_ONCE // (batch * labels)
    if nodes >= 2 * labels * compiled.top_k:
        found = _search(compiled._replace(node_limit=min(nodes, compiled.node_limit)), np.zeros(1, np.bool_))
        if nodes >= compiled.node_limit or not found.limited.any():
            return found
    return stoppable(lambda stop: _search(compiled, stop))


def nothing(batch: int, top_k: int, labels: int) -> Found:
    """Return a record of NumPy arrays to which a search writes labellings."""
    arrays: dict[str, Any] = {
        "labels": np.zeros((batch, top_k, labels), np.int64),
        "losses": np.full((batch, top_k), np.inf),
        "bound": np.full(batch, np.inf),
        "nodes": np.zeros(batch, np.int64),
        "limited": np.zeros(batch, np.bool_),
    }
    return Found(**arrays)


def _search(problem: Any, stop: np.ndarray) -> Found:
    (batch, labels), top_k = problem.fields.shape, problem.top_k
    found = nothing(batch, top_k, labels)
    size = -(-batch // (_CHUNKS_PER_THREAD * torch.get_num_threads()))
    edges = few_parents.few_edges(problem) if labels >= few_parents.LABELS else None

    def search_rows(start: int) -> None:
        rows = start, min(start + size, batch)
        if edges is None:
            _search_rows(problem, _cliques(problem), _tables(problem), found, *rows, stop)
        else:
            few_parents.search_rows(problem, edges, found, *rows, stop)

    if labels < 64 and batch * 2**labels <= _ALONE:
        size = batch
        search_rows(0)
    else:
        share(range(0, batch, size), search_rows)
    return found


class _Tables(NamedTuple):
    """The arrays of a thread for the current example."""

    spins: np.ndarray  # (labels + 1,), spins of decided and known labels; the last is for padding of cliques
    fields: np.ndarray  # (labels + 1, labels), row d: the part of z that the first d labels determine
    loss: np.ndarray  # (labels + 1,), loss of the first d labels
    right: np.ndarray  # (labels,), bounds of right branches not yet searched, infinite for others
    undecided: np.ndarray  # (labels + 1, labels), R: how much undecided parents can change fields


class _Cliques(NamedTuple):
    """The cliques, with a linked list of the cliques that become complete at each number of decisions."""

    parents: np.ndarray
    child: np.ndarray
    weight: np.ndarray
    first: np.ndarray  # (labels + 1,), the first clique of each list, −1 for none
    next: np.ndarray  # (cliques,), the next clique in the list, −1 for none


def _cliques(problem: Any) -> _Cliques | None:
    # Problems without cliques have compiled code of their own, which saves a quarter of the compilation.
    count = len(problem.clique_child)
    if count == 0:
        return None
    first = np.empty(problem.fields.shape[1] + 1, np.int64)
    tables = problem.clique_parents, problem.clique_child, problem.clique_weight
    return _Cliques(*tables, first, np.empty(count, np.int64))


# Python allocates the arrays; allocation in compiled code adds a quarter to the compilation.
def _tables(problem: Any) -> _Tables:
    labels = problem.fields.shape[1]
    return _Tables(
        spins=np.ones(labels + 1),
        fields=np.empty((labels + 1, labels)),
        loss=np.zeros(labels + 1),
        right=np.empty(labels),
        undecided=np.zeros((labels + 1, labels)),
    )


@njit(nogil=True, cache=True)
def _search_rows(problem, cliques, tables, found, first, last, stop):
    for example in range(first, last):
        known, children = of(problem.known, example), of(problem.children, example)
        _start(problem, cliques, tables, known, children, example)
        _search_example(problem, cliques, tables, known, children, found, example, stop)


@part
def _start_cliques(cliques, known, example, fields, undecided):
    """Build lists of cliques by the position of the last free parent, whose decision completes a clique."""
    weight = cliques.weight[min(example, len(cliques.weight) - 1)]
    for decisions in range(len(cliques.first)):
        cliques.first[decisions] = -1
    for clique in range(len(cliques.next)):
        decisions, term, t = 0, weight[clique], cliques.child[clique]
        for parent in cliques.parents[clique]:
            if parent < len(known):
                term *= known[parent]
                if known[parent] == 0:
                    decisions = max(decisions, parent + 1)
        cliques.next[clique] = cliques.first[decisions]
        cliques.first[decisions] = clique
        for position in range(decisions):
            undecided[position, t] += abs(weight[clique])
        if decisions == 0:
            fields[t] += term


@inlined
def _start(problem, cliques, tables, known, children, example):
    """Set the fields before the first decision, and how much later decisions can change the fields."""
    spins, fields, undecided = tables.spins, tables.fields, tables.undecided
    for t in range(len(known)):
        spins[t], fields[0, t], tables.right[t] = known[t], problem.fields[example, t], np.inf
    for j in range(len(known) - 1, -1, -1):
        for t in range(len(known)):
            undecided[j, t] = undecided[j + 1, t] + (abs(children[j, t]) if known[j] == 0 else 0.0)
            fields[0, t] += known[j] * children[j, t]
    if cliques is not None:
        _start_cliques(cliques, known, example, fields[0], undecided)


@inlined
def _turn_left(problem, tables, known, position, bound):
    """Choose the known spin, or the spin that agrees with the field; store the bound of the right branch."""
    field, hinge = tables.fields[position, position], (problem.margin, problem.temperature)
    if known[position] == 0:
        tables.spins[position] = 1.0 if field >= 0 else -1.0
        tables.right[position] = bound - label_loss(hinge, abs(field)) + label_loss(hinge, -abs(field))


@inlined
def _decide(problem, cliques, tables, known, children, example, position):
    """Update fields and loss after the decision at ``position``, and return the bound.

    This is done in one pass, because reading a row soon after writing costs more than all arithmetic.
    """
    spins, fields, undecided, depth = tables.spins, tables.fields, tables.undecided, position + 1
    hinge = problem.margin, problem.temperature
    bound = tables.loss[position] + label_loss(hinge, spins[position] * fields[position, position])
    tables.loss[depth] = bound
    # Effects of known parents are already in the initial fields.
    step = spins[position] if known[position] == 0 else 0.0
    for t in range(depth, len(known)):
        field = fields[position, t] + step * children[position, t]
        fields[depth, t] = field
        bound += least_loss(hinge, known[t], field, undecided[depth, t])
    if cliques is not None:
        weight, clique = of(cliques.weight, example), cliques.first[depth]
        while clique >= 0:
            t, term = cliques.child[clique], weight[clique]
            for parent in range(cliques.parents.shape[1]):
                term *= spins[cliques.parents[clique, parent]]
            bound -= least_loss(hinge, known[t], fields[depth, t], undecided[depth, t])
            fields[depth, t] += term
            bound += least_loss(hinge, known[t], fields[depth, t], undecided[depth, t])
            clique = cliques.next[clique]
    return bound


@inlined
def _search_example(problem, cliques, tables, known, children, found, example, stop):
    losses, fields, last = found.losses[example], tables.fields, len(known) - 1
    undecided, right = tables.undecided, tables.right
    bound, largest, hinge = 0.0, 0.0, (problem.margin, problem.temperature)
    for t in range(last + 1):
        bound += least_loss(hinge, known[t], fields[0, t], undecided[0, t])
        largest = max(largest, abs(fields[0, t]) + undecided[0, t])
    slack = problem.round_off * label_loss(hinge, -largest)
    threshold, nodes, position, left = np.inf, 0, 0, True
    while position >= 0 and not stop[0]:
        if nodes >= problem.node_limit and losses[-1] < np.inf:
            found.limited[example] = True
            found.bound[example] = bound if left else np.inf
            for t in range(last + 1):
                found.bound[example] = min(found.bound[example], right[t])
            break
        if left:
            _turn_left(problem, tables, known, position, bound)
        else:
            tables.spins[position] *= -1
            right[position] = np.inf
        bound = _decide(problem, cliques, tables, known, children, example, position)
        nodes += 1
        if position == last and bound < threshold:
            record(losses, found.labels[example], bound, tables.spins)
            if losses[-1] < np.inf:
                threshold = min(losses[-1], problem.ceiling) - slack
        left = position < last and bound < threshold
        if left:
            position += 1
        else:
            while position >= 0 and right[position] >= threshold:
                position -= 1
    found.nodes[example] = nodes
    found.bound[example] = min(found.bound[example], losses[-1], problem.ceiling)
