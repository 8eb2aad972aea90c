"""Examples of a batch grouped by graph, and graphs without impossible states. Internal."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lmbm_torch.checks import check_outside_transforms
from lmbm_torch.energies import FactorEnergy, FactorScopes
from lmbm_torch.energies.factor import padded_labels
from lmbm_torch.shapes import Int, Known


class Part(NamedTuple):
    """Examples of a batch that have the same graph.

    Args:
        rows: the numbers of the examples in the batch.
        energy: the energy of the examples, not packed.
    """

    rows: Sequence[int]
    energy: Any


def parts_of(energy: FactorEnergy, known: Known | None) -> list[Part]:
    """Check the input, and group the examples by graph; states that contradict ``known`` get −∞."""
    check_outside_transforms("table")
    energy.check_values()
    energy = energy.given(known)
    if not energy.is_packed:
        return [Part([*range(energy.batch_size)], energy)]
    groups: dict[FactorScopes, list[tuple[int, Tensor]]] = {}
    for row, one in enumerate(energy.examples()):
        groups.setdefault(one.structure, []).append((row, one.table))
    return [
        Part([row for row, _ in group], FactorEnergy(torch.cat([table for _, table in group]), structure))
        for structure, group in groups.items()
    ]


def in_rows(parts: Sequence[Part], values: Sequence[Tensor], axis: int = 0) -> Tensor:
    """Join the values of all parts along the axis of examples, in the order of the batch."""
    if len(parts) == 1:
        return torch.cat([*values], axis)
    rows = torch.tensor([row for part in parts for row in part.rows], device=values[0].device)
    return torch.cat([*values], axis).index_select(axis, rows.argsort())


def labels_in_rows(
    energy: Any, parts: Sequence[Part], labels: Sequence[Tensor], axis: int = 0
) -> Int[Tensor, "*samples batch labels"]:
    """Join the labels of all parts in the order of the batch, padded for graphs with fewer labels."""
    padded = [torch.nn.functional.pad(each, (0, energy.num_labels - each.shape[-1])) for each in labels]
    found = in_rows(parts, padded, axis)
    return padded_labels(energy, found) if isinstance(energy, FactorEnergy) else found


class Reduced(NamedTuple):
    """Graph without impossible states.

    Args:
        energy: the energy with the same scopes and fewer states.
        states: for each variable, the original numbers of the states that are left.
    """

    energy: FactorEnergy
    states: list[np.ndarray]

    def labels(self, found: Tensor) -> Tensor:
        """Convert labels (…, variables) to the original numbers of the states."""
        widest = max(map(len, self.states))
        table = np.stack([np.pad(each, (0, widest - len(each))) for each in self.states])
        numbers = torch.from_numpy(table).to(found.device)
        return numbers.expand(*found.shape, widest).gather(-1, found[..., None]).squeeze(-1)


def reduced(energy: FactorEnergy) -> Reduced:
    """Remove the states that −∞ rules out in every example, by arc consistency.

    Afterwards each state has a finite entry in each table of its label for some example. A graph without any
    allowed labelling is returned unchanged.
    """
    structure = energy.structure
    allowed = [np.ones(states, bool) for states in structure.num_states]
    whole = Reduced(energy, [np.arange(states) for states in structure.num_states])
    possible = (energy.table.detach() > -torch.inf).any(0).cpu().numpy()
    if possible.all():
        return whole
    tables = {
        number: possible[first:last].reshape([structure.num_states[each] for each in scope])
        for number, (scope, first, last) in enumerate(
            zip(structure.every_scope, structure.first, structure.first[1:], strict=False)
        )
        if scope
    }
    around: list[list[int]] = [[] for _ in allowed]
    for number, scope in enumerate(structure.every_scope):
        for variable in scope:
            around[variable].append(number)
    queue = dict.fromkeys(number for number, table in tables.items() if not table.all())
    while queue:
        number = next(iter(queue))
        del queue[number]
        scope, table = structure.every_scope[number], tables[number]
        for axis, variable in enumerate(scope):
            shape = [-1 if other == axis else 1 for other in range(len(scope))]
            table = table & allowed[variable].reshape(shape)
        for axis, variable in enumerate(scope):
            left = allowed[variable] & table.any(tuple(other for other in range(len(scope)) if other != axis))
            if not left.any():
                return whole
            if (left != allowed[variable]).any():
                allowed[variable] = left
                queue |= dict.fromkeys(around[variable])
    return _restricted(energy, [np.flatnonzero(each) for each in allowed])


def _restricted(energy: FactorEnergy, states: list[np.ndarray]) -> Reduced:
    """Return the graph with only the given states of each variable."""
    structure, index = energy.structure, []
    for scope, first in zip(structure.every_scope, structure.first.tolist(), strict=False):
        shape = [structure.num_states[each] for each in scope]
        numbers = np.arange(first, first + prod(shape)).reshape(shape)
        index.append(numbers[np.ix_(*(states[each] for each in scope))].ravel() if scope else numbers.ravel())
    kept = torch.from_numpy(np.concatenate(index)).to(energy.device)
    smaller = FactorScopes(tuple(map(len, states)), structure.scopes)
    return Reduced(FactorEnergy(energy.table[:, kept], smaller), states)
