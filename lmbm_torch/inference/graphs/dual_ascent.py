"""MAP decoding of graphs of any width with a bound: dual ascent, and branch and bound over states.

A reparametrisation moves log-potentials between tables and labels without changing any score. Sequential
tree-reweighted sweeps (TRW-S) look for a reparametrisation with a small bound Σ max unary + Σ max table, and
find labellings on the way. Branch and bound fixes states of labels, and continues from the parent's
reparametrisation. The sweeps run on the CPU, example by example.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch

from lmbm_torch.checks import check_count, count_limit
from lmbm_torch.energies import FactorEnergy, FactorScopes
from lmbm_torch.inference.common.results import Decoding, Status
from lmbm_torch.inference.graphs.arrays import Example, examples_of, graph_of, sweeps
from lmbm_torch.inference.graphs.elimination import allowed_score
from lmbm_torch.inference.graphs.parts import in_rows, labels_in_rows
from lmbm_torch.kernels.search.records import Graph
from lmbm_torch.kernels.threads import share
from lmbm_torch.shapes import Known
from lmbm_torch.verdicts import one_door

__all__ = ["branch_and_bound", "decode"]

# Relative gain of the bound by a pair of sweeps below which the ascent ends: at the root of the search, and
# at other nodes (scripts/bench/uai2014.py).
ROOT_GAIN, NODE_GAIN = 1e-7, 1e-4
# Largest number of pairs of sweeps at a node other than the root (scripts/bench/uai2014.py).
NODE_SWEEPS = 6
# Up to this number of nodes, a search without an allowed labelling goes on beyond its node limit.
FIRST_NODES = 1000
# Largest relative difference of bound and score that counts as a proof, some 1000 times a sum's round-off.
PROOF = 1e-9


@one_door
@torch.no_grad()
def decode(
    energy: FactorEnergy, *, known: Known | None = None, num_iters: int = 1000, tol: float = ROOT_GAIN
) -> Decoding:
    """Return a labelling of large score, and an upper bound of every score, by dual ascent.

    ``status.exact`` is true if the labelling's score equals the bound; ``status.residual`` is the gap.

    Args:
        energy: graphs of tables.
        known: (batch, labels), a label's known state, or NaN for a free label.
        num_iters: the largest number of pairs of sweeps, forwards and backwards.
        tol: the relative gain of the bound by a pair of sweeps below which the ascent ends.

    Raises:
        ValueError: NaN or +∞ in the energy; ``known`` has another shape than (batch, labels), or impossible
            values; ``num_iters`` below 1; no allowed labelling was found for an example.
    """
    check_count("num_iters", num_iters)
    return decoded(energy, known, lambda example: searched(example, num_iters, tol, 1))


@one_door
@torch.no_grad()
def branch_and_bound(
    energy: FactorEnergy, *, known: Known | None = None, node_limit: int | None = None
) -> Decoding:
    """Return the labelling of largest score (MAP), proven if the search ends within the limit.

    The search is depth-first: a node fixes the state of a label, and continues the ascent for a few sweeps.

    Args:
        energy, known: see :func:`decode`.
        node_limit: the number of nodes after which a search ends with the open nodes' bound; None: no limit.

    Raises:
        ValueError: see :func:`decode`; a limit that is no positive integer.
    """
    limit = count_limit("node_limit", node_limit)
    return decoded(energy, known, lambda example: searched(example, 1000, ROOT_GAIN, limit))


class Found(NamedTuple):
    """Result for an example; ``labels`` are numbered as in the arrays, without impossible states."""

    labels: np.ndarray
    score: float
    bound: float
    sweeps: int
    nodes: int
    converged: bool


def decoded(
    energy: FactorEnergy, known: Known | None, search: Callable[[Example], Found], proof: float = PROOF
) -> Decoding:
    """Decode all examples by ``search``, example by example, in several threads; internal.

    Args:
        energy, known: see :func:`decode`.
        search: a function from an example to labels, numbered as in the arrays, with a bound.
        proof: the largest relative difference of bound and score that counts as a proof.
    """
    parts, labels, numbers = [], [], []
    for part, examples in examples_of(energy, known):
        found: list[Found] = [None] * len(examples)  # pyright: ignore[reportAssignmentType]

        def work(number: int, examples: list[Example] = examples, found: list[Found] = found) -> None:
            found[number] = search(examples[number])

        share(range(len(examples)), work)
        parts.append(part)
        each = list(zip(examples, found, strict=True))
        labels.append(torch.stack([example.labels(one.labels) for example, one in each]))
        rest = [[one.bound, one.sweeps, one.nodes, one.converged, example.unit] for example, one in each]
        numbers.append(torch.tensor(rest, dtype=torch.float64, device=energy.device))
    answer = labels_in_rows(energy, parts, labels)
    bound, made, nodes, converged, unit = in_rows(parts, numbers).T
    objective = allowed_score(energy, known, answer)
    # Allow more round-off if the score is in single precision.
    proof = max(proof, 32 * torch.finfo(energy.dtype).eps)
    exact = bound - objective.double() <= proof * (unit + objective.double().abs())
    bound = torch.maximum(bound.to(energy.dtype), objective).where(~exact, objective)
    status = Status(exact, converged > 0, made.long(), bound - objective)
    return Decoding(answer, objective, bound, status, nodes=nodes.long())


class _Node(NamedTuple):
    """Node not yet searched: a bound, and the parent's reparametrisation, with −∞ for excluded states."""

    bound: float
    unary: np.ndarray
    entries: np.ndarray


def searched_tables(
    structure: FactorScopes,
    unary: np.ndarray,
    entries: np.ndarray,
    *,
    num_iters: int,
    tol: float,
    node_limit: int,
) -> Found:
    """Return the best labelling and bound of a graph of finite tables; made for many calls by training.

    Args:
        unary: log-potentials of the states of all labels, one label after another, float64.
        entries: log-potentials of all other tables, each of two or more labels, float64.
        num_iters, tol: see :func:`decode`.
        node_limit: see :func:`branch_and_bound`.
    """
    graph, _ = graph_of(structure)
    return searched(Example(graph, unary, entries, 0.0, None, 0), num_iters, tol, node_limit)


def searched(example: Example, num_iters: int, tol: float, node_limit: int) -> Found:
    """Return the best labelling and bound of one example after at most ``node_limit`` nodes."""
    kernel, graph = sweeps(), example.graph
    order = np.arange(len(graph.states))
    rank, limits = order.copy(), np.empty(2)
    best, score = np.zeros(len(order), np.int64), -np.inf
    made = nodes = 0
    unit = example.unit
    stack = [_Node(np.inf, example.unary.copy(), example.entries.copy())]
    left = -np.inf
    converged = False

    def is_settled(bound: float) -> bool:
        return bound <= score + PROOF * (unit + abs(score)) / 2

    while stack and (nodes < node_limit or (score == -np.inf and nodes < FIRST_NODES)):
        node = stack.pop()
        if is_settled(node.bound):
            continue
        unary, entries = node.unary, node.entries
        is_root, nodes = nodes == 0, nodes + 1
        bound = node.bound
        limit, gain = (num_iters, tol) if is_root else (NODE_SWEEPS, NODE_GAIN)
        while limit > 0:
            # Ascend in portions, and round after each: a good labelling may end the ascent early.
            portion = min(limit, 20)
            done = int(kernel.ascend(graph, unary, entries, order, rank, portion, gain, limits))
            made, limit = made + done, limit - portion
            bound = min(bound, limits[1])
            labels = np.zeros(len(order), np.int64)
            kernel.rounded(graph, unary, entries, order, labels)
            kernel.improved(graph, example.unary, example.entries, labels)
            found = kernel.score_of(graph, example.unary, example.entries, labels)
            if found > score:
                best, score = labels, found
            if is_root:
                converged = done < portion or limits[0] - limits[1] <= tol * (1 + abs(limits[1]))
            if done < portion or is_settled(bound):
                break
        if is_settled(bound) or bound == -np.inf:
            continue
        branches = _branched(graph, unary, entries, bound)
        if branches is None:
            left = max(left, bound)
            continue
        stack += branches
    open_bound = max([left, score, *(node.bound for node in stack)])
    return Found(best, score + example.constant, open_bound + example.constant, made, nodes, converged)


def _branched(graph: Graph, unary: np.ndarray, entries: np.ndarray, bound: float) -> list[_Node] | None:
    """Split a node by a label: all states but the best, then the best state; None if no label is open."""
    states, at = graph.states, graph.at
    padded = np.full((len(states), int(states.max())), -np.inf)
    inside = np.arange(padded.shape[1]) < states[:, None]
    padded[inside] = unary
    if padded.shape[1] == 1:
        return None
    two = np.partition(padded, -2, 1)[:, -2:]
    gap = two[:, 1] - two[:, 0]
    open_labels = np.isfinite(gap)
    if not open_labels.any():
        return None
    degree = np.diff(graph.start)
    # Branch on a label in many tables whose best state leads by little: the bound changes most.
    label = int(np.argmax(np.where(open_labels, (degree + 1) / (gap + 1e-3), -1)))
    own = slice(int(at[label]), int(at[label + 1]))
    best = int(unary[own].argmax())
    chosen, others = unary.copy(), unary.copy()
    chosen[own] = -np.inf
    chosen[own.start + best] = unary[own.start + best]
    others[own.start + best] = -np.inf
    return [_Node(bound, others, entries.copy()), _Node(bound, chosen, entries)]
