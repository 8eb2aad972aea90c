"""Graphs of tables as flat arrays for compiled sweeps, one example at a time. Internal."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lmbm_torch.energies import FactorEnergy, FactorScopes
from lmbm_torch.inference.graphs.parts import Part, parts_of, reduced
from lmbm_torch.kernels.installed import kernels
from lmbm_torch.kernels.search.records import Graph
from lmbm_torch.shapes import Known

# Largest number of graphs whose arrays are cached.
NUM_GRAPHS = 64


def sweeps() -> Any:
    """Return the module of compiled sweeps over a graph."""
    return kernels("search.factor_graphs")


@lru_cache(NUM_GRAPHS)
def graph_of(structure: FactorScopes) -> tuple[Graph, np.ndarray]:
    """Return the arrays of a graph, and the positions of tables without variables, which are constants."""
    first, every = structure.first, structure.every_scope
    numbers = [number for number in range(structure.num_variables, len(every)) if every[number]]
    constants = [int(first[number]) for number, scope in enumerate(every) if not scope]
    scopes = [every[number] for number in numbers]
    sizes = np.array([first[number + 1] - first[number] for number in numbers], np.int64)
    variable = np.array([each for scope in scopes for each in scope], np.int64)
    states = np.array(structure.num_states, np.int64)
    _, strides = structure.places
    inner = [strides[number, place] for number in numbers for place in range(len(every[number]))]
    around = np.argsort(variable, kind="stable")
    count = np.bincount(variable, minlength=len(states))
    graph = Graph(
        states=states,
        at=first[: len(states) + 1].copy(),
        first=_sums(sizes),
        place=_sums([len(scope) for scope in scopes]),
        variable=variable,
        inner=np.array(inner, np.int64),
        slot=_sums(states[variable]),
        start=_sums(count),
        around=around,
        table=np.repeat(np.arange(len(scopes)), [len(scope) for scope in scopes]),
    )
    return graph, np.array(constants, np.int64)


class Example(NamedTuple):
    """Arrays of one example, without impossible states.

    Args:
        graph: the structure as arrays.
        unary: log-potentials of the states of all variables, float64.
        entries: log-potentials of the tables of two or more variables, float64.
        constant: the sum of the tables without variables.
        back: a :class:`Reduced` that maps the arrays' states to the energy's states.
        row: the number of the example in the batch.
    """

    graph: Graph
    unary: np.ndarray
    entries: np.ndarray
    constant: float
    back: Any
    row: int

    @property
    def unit(self) -> float:
        """Return the largest magnitude of a log-potential, but at most 1: the unit of absolute tolerances."""
        values = np.abs(np.concatenate([self.unary, self.entries]))
        return min(float(values.max(initial=0.0, where=np.isfinite(values))) or 1.0, 1.0)

    def labels(self, labels: np.ndarray) -> Tensor:
        """Convert labels (variables,) from the arrays' states to the energy's states."""
        found = torch.from_numpy(np.ascontiguousarray(labels))[None].to(self.back.energy.device)
        return self.back.labels(found)[0]

    def spread(self, values: np.ndarray, fill: float, states: int) -> np.ndarray:
        """Arrange values of unary entries as (variables, states), with ``fill`` for impossible states."""
        found = np.full((len(self.graph.states), states), fill)
        for variable, kept in enumerate(self.back.states):
            found[variable, kept] = values[self.graph.at[variable] : self.graph.at[variable + 1]]
        return found


def examples_of(energy: FactorEnergy, known: Known | None) -> Iterator[tuple[Part, list[Example]]]:
    """Check the input, and yield for each distinct graph its examples as arrays."""
    for part in parts_of(energy, known):
        each = zip(part.rows, part.energy.examples(), strict=True)
        yield part, [example_of(one, row) for row, one in each]


def example_of(energy: FactorEnergy, row: int = 0) -> Example:
    """Convert one example to arrays."""
    back = reduced(energy)
    structure = back.energy.structure
    graph, constants = graph_of(structure)
    table = back.energy.table[0].detach().cpu().double().numpy()
    entries = np.delete(table[structure.num_unary :], constants - structure.num_unary)
    return Example(graph, table[: structure.num_unary].copy(), entries, table[constants].sum(), back, row)


def _sums(sizes: Any) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
