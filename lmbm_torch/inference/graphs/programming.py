"""MAP decoding of graphs by linear and integer programmes with the solver HiGHS, over the local polytope.

The variables of the programme are probabilities: μ_i(s) for each state of a label, and μ_c(y_c) for each
entry of a table, whose marginals equal the μ_i (max_margin_markov_networks_survey_2003, section 4.1). With
integer variables the optimum is the best labelling, otherwise an upper bound, exact on forests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from lmbm_torch.checks import check_positive
from lmbm_torch.energies import FactorEnergy
from lmbm_torch.extras import naming_extras
from lmbm_torch.inference.common.results import Decoding, Status
from lmbm_torch.inference.graphs.arrays import Example, examples_of, sweeps
from lmbm_torch.inference.graphs.elimination import allowed_score
from lmbm_torch.inference.graphs.parts import in_rows, labels_in_rows
from lmbm_torch.kernels.search.records import Graph
from lmbm_torch.shapes import Known
from lmbm_torch.verdicts import one_door

with naming_extras():
    from scipy import sparse
    from scipy.optimize import Bounds, LinearConstraint, milp

__all__ = ["decode", "decode_relaxed"]

# Relative tolerance of the solver, by which the bound is raised, and within which a score counts as proven.
TOLERANCE = 1e-6


@one_door
@torch.no_grad()
def decode(energy: FactorEnergy, *, known: Known | None = None, time_limit: float | None = None) -> Decoding:
    """Return the labelling of largest score (MAP) by an integer programme, with the solver's bound.

    Args:
        energy: graphs of tables.
        known: (batch, labels), a label's known state, or NaN for a free label.
        time_limit: seconds of wall time for an example; results then depend on the computer's speed.

    Raises:
        ValueError: NaN or +∞ in the energy; ``known`` has another shape than (batch, labels), or impossible
            values; the time limit is not a finite number above 0; no allowed labelling was found.
    """
    if time_limit is not None:
        check_positive("time_limit", time_limit)
    options = {} if time_limit is None else {"time_limit": time_limit}
    return solved(energy, known, lambda example: _programmed(example, is_whole=True, options=options))


@one_door
@torch.no_grad()
def decode_relaxed(energy: FactorEnergy, *, known: Known | None = None) -> Decoding:
    """Return a labelling by the linear relaxation, rounded, with the relaxation's optimum as bound.

    The state of a single label in the rounded labelling is changed as long as this raises the score.

    Args:
        energy, known: see :func:`decode`.

    Raises:
        ValueError: see :func:`decode`.
    """
    return solved(energy, known, lambda example: _programmed(example, is_whole=False, options={}))


class Solution(NamedTuple):
    """Labels, numbered as in the arrays; an upper bound; the number of nodes; whether the solver finished."""

    labels: np.ndarray
    bound: float
    nodes: int
    converged: bool


def solved(energy: FactorEnergy, known: Known | None, solve: Callable[[Example], Solution]) -> Decoding:
    """Decode all examples by ``solve``, example by example."""
    parts, labels, numbers = [], [], []
    for part, examples in examples_of(energy, known):
        each = [solve(example) for example in examples]
        parts.append(part)
        pairs = zip(examples, each, strict=True)
        labels.append(torch.stack([example.labels(found.labels) for example, found in pairs]))
        rest = [[*found[1:], example.unit] for example, found in zip(examples, each, strict=True)]
        numbers.append(torch.tensor(rest, dtype=torch.float64, device=energy.device))
    answer = labels_in_rows(energy, parts, labels)
    bound, nodes, converged, unit = in_rows(parts, numbers).T
    objective = allowed_score(energy, known, answer)
    exact = bound - objective.double() <= 2 * TOLERANCE * (unit + objective.double().abs())
    bound = torch.maximum(bound.to(energy.dtype), objective).where(~exact, objective)
    return Decoding(answer, objective, bound, Status(exact, converged > 0, nodes.long(), bound - objective))


def local_polytope(graph: Graph) -> tuple[sparse.csr_array, np.ndarray]:
    """Return A and b of the local polytope Aμ = b; columns: all unary entries, then all tables' entries."""
    size = int(graph.at[-1])
    rows, columns, weights = [], [], []
    rows.append(np.repeat(np.arange(len(graph.states)), graph.states))
    columns.append(np.arange(size))
    weights.append(np.ones(size))
    first_row = len(graph.states)
    for place in range(len(graph.variable)):
        table, name = int(graph.table[place]), int(graph.variable[place])
        numbers = np.arange(int(graph.first[table + 1] - graph.first[table]))
        states = int(graph.states[name])
        rows += [first_row + numbers // graph.inner[place] % states, first_row + np.arange(states)]
        columns += [size + graph.first[table] + numbers, graph.at[name] + np.arange(states)]
        weights += [np.ones(len(numbers)), -np.ones(states)]
        first_row += states
    matrix = sparse.csr_array(
        (np.concatenate(weights), (np.concatenate(rows), np.concatenate(columns))),
        shape=(first_row, size + int(graph.first[-1])),
    )
    right = np.zeros(first_row)
    right[: len(graph.states)] = 1.0
    return matrix, right


def optimum(
    example: Example, constraints: Sequence[LinearConstraint], *, is_whole: bool, options: dict[str, Any]
) -> tuple[np.ndarray | None, Solution]:
    """Solve a programme; return μ (None if unsolved), and the labels of largest μ, improved by changes."""
    graph, unary, entries = example.graph, example.unary, example.entries
    values = np.concatenate([unary, entries])
    allowed: Any = values > -np.inf
    # Only the states need integer variables: integer states force the entries of tables to be integer.
    whole = np.where(np.arange(len(values)) < len(unary), 1, 0) if is_whole else None
    answer = milp(
        -np.where(allowed, values, 0.0) / example.unit,
        integrality=whole,
        bounds=Bounds(0, allowed.astype(float)),
        constraints=constraints,
        options={"mip_rel_gap": 0.0} | options,
    )
    labels = np.zeros(len(graph.states), np.int64)
    if answer.x is not None:
        for name in range(len(labels)):
            labels[name] = answer.x[graph.at[name] : graph.at[name + 1]].argmax()
    sweeps().improved(graph, unary, entries, labels)
    least = getattr(answer, "mip_dual_bound", None) if is_whole else answer.fun
    bound = np.inf if least is None else -float(least)
    bound = example.unit * (bound + TOLERANCE * (1 + abs(bound))) + example.constant
    nodes = int(getattr(answer, "mip_node_count", 0) or 0)
    return answer.x, Solution(labels, bound, nodes, answer.status == 0)


def _programmed(example: Example, *, is_whole: bool, options: dict[str, Any]) -> Solution:
    matrix, right = local_polytope(example.graph)
    values: Any = right
    return optimum(example, [LinearConstraint(matrix, values, values)], is_whole=is_whole, options=options)[1]
