"""Hinge losses of a graph as a graph of tables, whose MAP labelling has the least hinge loss. Internal."""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor

from lmbm_torch.energies import FactorEnergy

# Largest number of entries of a hinge table: enough for a label with 4 neighbours of 20 states each.
MAX_ENTRIES = 2**22


def hinge_energy(energy: FactorEnergy, margin: float) -> FactorEnergy:
    """Return an energy with score −Σ_i [margin − m_i]_+: a table for each label and its neighbours.

    Raises:
        ValueError: a label has so many neighbours that the table has more than 2^22 entries.
    """
    if energy.is_packed:
        return FactorEnergy.packed([hinge_energy(one, margin) for one in energy.examples()])
    structure = energy.structure
    around: list[list[int]] = [[] for _ in structure.num_states]
    for number, scope in enumerate(structure.every_scope):
        for variable in scope:
            around[variable].append(number)
    factors: list[tuple[tuple[int, ...], Tensor]] = []
    for variable, numbers in enumerate(around):
        others = {each for number in numbers for each in structure.every_scope[number]} - {variable}
        home = (variable, *sorted(others))
        shape = [structure.num_states[each] for each in home]
        if (entries := prod(shape)) > MAX_ENTRIES:
            raise ValueError(
                f"energy: expected hinges of at most {MAX_ENTRIES} entries, got {entries} of label "
                f"{variable} and {len(others)} labels around"
            )
        total = energy.table.new_zeros(energy.batch_size, *shape)
        for number in numbers:
            scope = structure.every_scope[number]
            own = [structure.num_states[each] for each in scope]
            table = energy.table[:, structure.first[number] : structure.first[number + 1]].view(-1, *own)
            order = sorted(range(len(scope)), key=lambda axis: home.index(scope[axis]))
            table = table.permute(0, *(1 + axis for axis in order))
            axes = [structure.num_states[each] if each in scope else 1 for each in home]
            total = total + table.reshape(-1, *axes)
        factors.append((home, _hinge(total, margin)))
    return FactorEnergy.of(structure.num_states, factors)


def _hinge(local: Tensor, margin: float) -> Tensor:
    """Return −[margin − m]_+ for each state (axis 1), where m is half the lead over the best other state."""
    if local.shape[1] == 1:
        return torch.zeros_like(local).masked_fill(local == -torch.inf, -torch.inf)
    two = local.topk(2, 1)
    is_best = torch.arange(local.shape[1], device=local.device).view(-1, *[1] * (local.ndim - 2))
    other = torch.where(is_best == two.indices[:, :1], two.values[:, 1:], two.values[:, :1])
    half = torch.where(
        other == -torch.inf, torch.inf, (local - other.masked_fill(other == -torch.inf, 0)) / 2
    )
    return -(margin - half).clamp(min=0).masked_fill(local == -torch.inf, torch.inf)
