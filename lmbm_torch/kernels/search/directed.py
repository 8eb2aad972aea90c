"""Depth-first branch and bound over the binary labels of directed models, example by example.

With the labels in topological order the search minimises Σ_t ℓ(m_t), m_t = s_t z_t, where the field z_t
depends on the spins before t, and ℓ(m) = T softplus((γ − m)/T), the hinge [γ − m]_+ at temperature T = 0
(lmbm_and_lmsbn_2010, Algorithm 2). With the labels before position d decided, the field of a later label t is
settled up to R_dt, the sum of the absolute weights of undecided parents, so the loss is at least ℓ(|z_t| +
R_dt), or ℓ(s_t z_t + R_dt) for a known spin. A node is pruned when the loss so far plus the bounds reaches
the incumbent. A right branch needs no fields for a bound: the bound is the parent's, with the loss of one
label exchanged.

Sharper bounds do not pay at trained models: linear models of Scene and Yeast (6 and 14 labels) take 6.6 and
19 nodes an example, and bounding labels in pairs saves 1 % of the nodes for 1.3 and 1.7 times the time.

Each free thread takes the next small chunk of examples, because some searches take a thousand times as long
as most.
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
# Labellings searched within some 10 ms, too soon for an interrupt.
_AT_ONCE = 100_000
# Fields updated in the time another thread needs to begin.
_FIELDS_AT_ONCE = 30_000
# Labellings of all examples (a search visits few) that take no longer than waking another thread.
_ALONE = 20_000


def search(problem: SearchProblem) -> Found:
    """Return the labellings of least loss, for tensors on the CPU."""
    arrays: dict[str, Any] = {
        name: value.contiguous().numpy() if isinstance(value, Tensor) else value
        for name, value in problem._asdict().items()
    }
    found: Any = search_arrays(SearchProblem(**arrays))
    return Found(*map(torch.from_numpy, found))


def search_arrays(compiled: Any) -> Found:
    """Run :func:`search` on contiguous NumPy arrays; for single rows conversions would dominate."""
    batch, labels = compiled.fields.shape
    if labels < 64 and batch * 2**labels <= _AT_ONCE:
        return _search(compiled, np.zeros(1, np.bool_))
    # Most searches of a few examples end soon after the first leaf, too soon for an interrupt.
    nodes = _FIELDS_AT_ONCE // (batch * labels)
    if nodes >= 2 * labels * compiled.top_k:
        found = _search(compiled._replace(node_limit=min(nodes, compiled.node_limit)), np.zeros(1, np.bool_))
        if nodes >= compiled.node_limit or not found.limited.any():
            return found
    return stoppable(lambda stop: _search(compiled, stop))


def nothing(batch: int, top_k: int, labels: int) -> Found:
    """Return the record of no labellings, as NumPy arrays."""
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
    """The tables of a thread for the current example."""

    spins: np.ndarray  # (labels + 1,), known spins throughout; the last entry fills up the cliques
    fields: np.ndarray  # (labels + 1, labels), row d: the settled part of z with d labels decided
    loss: np.ndarray  # (labels + 1,), of the first d labels
    right: np.ndarray  # (labels,), bounds of the open right branches, infinite for other branches
    undecided: np.ndarray  # (labels + 1, labels), R


class _Cliques(NamedTuple):
    """The problem's cliques, with a list of the cliques settled by each number of decisions."""

    parents: np.ndarray
    child: np.ndarray
    weight: np.ndarray
    first: np.ndarray  # (labels + 1,), the list's head, −1 for none
    next: np.ndarray  # (cliques,)


def _cliques(problem: Any) -> _Cliques | None:
    # Compiled separately without cliques: a quarter less compilation.
    count = len(problem.clique_child)
    if count == 0:
        return None
    first = np.empty(problem.fields.shape[1] + 1, np.int64)
    tables = problem.clique_parents, problem.clique_child, problem.clique_weight
    return _Cliques(*tables, first, np.empty(count, np.int64))


# Allocated by Python: allocation in compiled code takes a quarter more compilation.
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
    """Chain the cliques by the number of decisions that settle each: the last free parent's position."""
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
    """Set the fields before the first decision, and the possible later changes from each position on."""
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
    """Choose the spin that agrees with the field (or is known), and store the bound of the right branch."""
    field, hinge = tables.fields[position, position], (problem.margin, problem.temperature)
    if known[position] == 0:
        tables.spins[position] = 1.0 if field >= 0 else -1.0
        tables.right[position] = bound - label_loss(hinge, abs(field)) + label_loss(hinge, -abs(field))


@inlined
def _decide(problem, cliques, tables, known, children, example, position):
    """Update fields and loss after a decision at ``position``, and return the bound.

    One pass: reading a row right after writing costs more than all arithmetic.
    """
    spins, fields, undecided, depth = tables.spins, tables.fields, tables.undecided, position + 1
    hinge = problem.margin, problem.temperature
    bound = tables.loss[position] + label_loss(hinge, spins[position] * fields[position, position])
    tables.loss[depth] = bound
    # A known parent's share is part of the initial fields.
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
