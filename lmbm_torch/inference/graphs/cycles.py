"""MAP decoding of graphs of any width by linear programmes with cycle inequalities, then branch and cut.

An indicator [y_i = s] is 1 if label i has state s. For an edge e between two indicators, let d_e be the
probability that they differ. Around a cycle C, indicators change between 0 and 1 an even number of times, so
Σ_{e ∈ F} (1 − d_e) + Σ_{e ∈ C∖F} d_e ≥ 1 for any F ⊆ C of odd size (Sontag and Jaakkola, New outer bounds on
the marginal polytope, 2007, section 4, projection to single states). The local polytope violates some of
the inequalities; adding them often closes the gap for planar and toroidal grids.
"""

from __future__ import annotations

from itertools import combinations, pairwise
from typing import Any, NamedTuple

import numpy as np
import torch

from lmbm_torch.checks import check_count, count_limit
from lmbm_torch.energies import FactorEnergy
from lmbm_torch.extras import naming_extras
from lmbm_torch.inference.common.results import Decoding
from lmbm_torch.inference.graphs.arrays import Example, sweeps
from lmbm_torch.inference.graphs.programming import TOLERANCE, Solution, local_polytope, optimum, solved
from lmbm_torch.kernels.search.records import Graph
from lmbm_torch.shapes import Known
from lmbm_torch.verdicts import one_door

with naming_extras():
    from scipy import sparse
    from scipy.optimize import LinearConstraint
    from scipy.sparse.csgraph import dijkstra

__all__ = ["decode"]

# Smallest violation of a cycle inequality that is added (scripts/bench/uai2014.py).
LEAST_VIOLATION = 1e-3
# Number of indicators for which shortest paths are computed, and kept in memory, at once.
SOURCES = 256


@one_door
@torch.no_grad()
def decode(
    energy: FactorEnergy, *, known: Known | None = None, num_rounds: int = 30, node_limit: int | None = 100
) -> Decoding:
    """Return a labelling of large score and an upper bound, by cutting planes, then an integer programme.

    ``status.num_iters`` is the number of nodes of the integer programme, 0 if the linear programmes suffice.

    Args:
        energy: graphs of tables.
        known: (batch, labels), a label's known state, or NaN for a free label.
        num_rounds: the largest number of linear programmes; each adds the inequalities the last one violates.
        node_limit: the largest number of nodes of an example's integer programme; None for no limit.

    Raises:
        ValueError: NaN or +∞ in the energy; ``known`` has another shape than (batch, labels), or impossible
            values; ``num_rounds`` or the limit is no positive integer; no allowed labelling was found.
    """
    check_count("num_rounds", num_rounds)
    limit = count_limit("node_limit", node_limit)
    return solved(energy, known, lambda example: _cut(example, num_rounds, limit))


def _cut(example: Example, num_rounds: int, node_limit: int) -> Solution:
    """Return the best labelling that all programmes of an example found, and the smallest bound."""
    matrix, right = local_polytope(example.graph)
    equal: Any = right
    constraints = [LinearConstraint(matrix, equal, equal)]
    crossings = _crossings(example.graph)
    known: set[tuple[tuple[int, int], ...]] = set()
    found: list[Solution] = []

    def best() -> Solution:
        scores = [_score(example, each.labels) for each in found]
        labels = found[int(np.argmax(scores))].labels
        bound = min(each.bound for each in found)
        proven = bound - max(scores) <= 2 * TOLERANCE * (example.unit + abs(max(scores)))
        return Solution(labels, bound, sum(each.nodes for each in found), proven)

    for _ in range(num_rounds):
        chances, solution = optimum(example, constraints, is_whole=False, options={})
        found.append(solution)
        if chances is None or best().converged:
            return best()
        cycles: Any = _violated(crossings, chances, known)
        if not cycles.shape[0]:
            break
        least: Any = 1.0 - np.asarray((cycles < 0).sum(1)).ravel()
        constraints.append(LinearConstraint(sparse.csr_array(cycles @ crossings.matrix), least, np.inf))
    # Cap the limit, because HiGHS stores it as a 32-bit integer.
    options = {"node_limit": min(node_limit, 2**31 - 1)}
    whole = optimum(example, constraints, is_whole=True, options=options)[1]
    found.append(whole)
    last = best()
    return last._replace(converged=last.converged or whole.converged)


def _score(example: Example, labels: np.ndarray) -> float:
    own = sweeps().score_of(example.graph, example.unary, example.entries, labels)
    return float(own) + example.constant


class _Crossings(NamedTuple):
    """Edges between indicators [y_i = s] whose variables share a table.

    Args:
        ends: (pairs, 2), the numbers of the two indicators of each edge, the lower first.
        matrix: (pairs, entries of the programme), maps the programme's probabilities to P(indicators differ).
        states: (indicators,), the unary entry of each indicator: only state 1 of a variable of two states,
            every state of other variables.
    """

    ends: np.ndarray
    matrix: sparse.csr_array
    states: np.ndarray


def _crossings(graph: Graph) -> _Crossings:
    size = int(graph.at[-1])
    state = np.arange(size) - np.repeat(graph.at[:-1], graph.states)
    # One indicator suffices for a variable of two states, since both states change together.
    has = np.repeat(graph.states, graph.states) > np.where(state == 0, 2, 1)
    number = np.where(has, np.cumsum(has) - 1, -1)
    ends, places = [], []
    for table, (low, high) in enumerate(pairwise(graph.place.tolist())):
        entries = np.arange(graph.first[table], graph.first[table + 1])
        for pair in combinations(range(low, high), 2):
            inside = entries - graph.first[table]
            of_pair = [
                graph.at[graph.variable[each]]
                + inside // graph.inner[each] % graph.states[graph.variable[each]]
                for each in pair
            ]
            ends.append(np.stack(of_pair, 1))
            places.append(size + entries)
    if not ends:
        return _Crossings(np.zeros((0, 2), np.int64), sparse.csr_array((0, size)), np.flatnonzero(has))
    own, place = np.concatenate(ends), np.concatenate(places)
    kept = has[own].all(1)
    own, place = own[kept], place[kept]
    of_table = np.searchsorted(graph.first, place - size, side="right")
    _, of_entry = np.unique(np.column_stack([of_table, own]), axis=0, return_inverse=True)
    first = np.zeros(of_entry.max(initial=-1) + 1, np.int64)
    first[of_entry] = np.arange(len(of_entry))
    pairs = np.arange(len(first))
    matrix = sparse.csr_array(
        (
            np.concatenate([np.ones(2 * len(pairs)), np.full(len(place), -2.0)]),
            (
                np.concatenate([pairs, pairs, of_entry]),
                np.concatenate([own[first, 0], own[first, 1], place]),
            ),
        ),
        shape=(len(pairs), size + int(graph.first[-1])),
    )
    ends = np.sort(number[own[first]], axis=1)
    # Keep one edge if several tables share a pair of indicators: all give the same probability.
    _, chosen = np.unique(ends, axis=0, return_index=True)
    return _Crossings(ends[chosen], sparse.csr_array(matrix[chosen]), np.flatnonzero(has))


def _violated(
    crossings: _Crossings, chances: np.ndarray, known: set[tuple[tuple[int, int], ...]]
) -> sparse.csr_array:
    """Return new violated cycles as a matrix (cycles, pairs): −1 for pairs in F, 1 for others on the cycle.

    To find F of odd size, take two copies of every indicator. An edge inside a copy costs d, an edge between
    the copies 1 − d. The shortest path from an indicator to its other copy is the most violated cycle.
    """
    number = len(crossings.states)
    differ = np.clip(crossings.matrix @ chances, 0.0, 1.0)
    one, other = crossings.ends.T
    ends = np.stack([[one, one + number, one, one + number], [other, other + number, other + number, other]])
    # Add a tiny cost, since a sparse graph would drop edges of cost 0.
    costs = np.concatenate([differ, differ, 1 - differ, 1 - differ]) + 1e-9
    sides = sparse.csr_array((costs, ends.reshape(2, -1)), shape=(2 * number, 2 * number))
    pair_of = {tuple(pair): at for at, pair in enumerate(crossings.ends.tolist())}
    own = chances[crossings.states]
    is_open = (own > 1e-6) & (own < 1 - 1e-6)
    rows: list[dict[int, int]] = []
    for sources in np.array_split(np.flatnonzero(is_open), 1 + is_open.sum() // SOURCES):
        if not len(sources):
            continue
        lengths, before = dijkstra(
            sides, directed=False, indices=sources, return_predecessors=True, limit=1.0
        )
        for row, source in enumerate(sources):
            if lengths[row, source + number] >= 1 - LEAST_VIOLATION:
                continue
            path = [int(source) + number]
            while path[-1] != source:
                path.append(int(before[row, path[-1]]))
            cycle: dict[int, int] = {}
            for here, there in pairwise(path):
                low, high = sorted((here % number, there % number))
                cycle[pair_of[low, high]] = 1 if (here < number) == (there < number) else -1
            key = tuple(sorted(cycle.items()))
            # A path that uses a pair twice is no cycle: skip it.
            if len(cycle) == len(path) - 1 and key not in known:
                known.add(key)
                rows.append(cycle)
    start = np.cumsum([0, *map(len, rows)])
    values = np.array([sign for cycle in rows for sign in cycle.values()], float)
    columns = np.array([pair for cycle in rows for pair in cycle], np.int64)
    return sparse.csr_array((values, columns, start), shape=(len(rows), len(crossings.ends)))
