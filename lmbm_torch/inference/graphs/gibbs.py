"""Gibbs sampling in graphs of tables, in blocks of labels that share no table, on any device."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from lmbm_torch.checks import check_count
from lmbm_torch.energies import FactorEnergy, FactorScopes
from lmbm_torch.inference.graphs.dual_ascent import decode
from lmbm_torch.inference.graphs.parts import labels_in_rows, parts_of
from lmbm_torch.shapes import Int, Known
from lmbm_torch.verdicts import one_door

__all__ = ["sample"]


@one_door
@torch.no_grad()
def sample(
    energy: FactorEnergy,
    num_samples: int,
    *,
    known: Known | None = None,
    num_steps: int = 1000,
    generator: torch.Generator | None = None,
) -> Int[Tensor, "num_samples batch labels"]:
    """Draw labellings approximately from P(y), by independent chains of ``num_steps`` sweeps each.

    A greedy colouring gives labels that share a table different colours. All labels of a colour are drawn at
    once, given the others. Chains start at an allowed labelling of large score. With −∞ in tables, some
    allowed labellings may be unreachable for a chain.

    Args:
        energy: graphs of tables.
        num_samples: the number of chains, and of draws, for each example.
        known: (batch, labels), a label's known state, or NaN for a free label.
        num_steps: the number of sweeps over all labels.
        generator: the source of randomness, on the energy's device; by default torch's own.

    Raises:
        ValueError: NaN or +∞ in the energy; ``known`` has another shape than (batch, labels), or impossible
            values; ``num_samples`` or ``num_steps`` below 1; no allowed labelling was found for an example.
    """
    check_count("num_samples", num_samples)
    check_count("num_steps", num_steps)
    parts, found = parts_of(energy, known), []
    for part in parts:
        start = decode(part.energy).labels
        labels = start.expand(num_samples, -1, -1).clone()
        blocks = [block.to(energy.device) for block in _blocks(part.energy.structure)]
        for _ in range(num_steps):
            for block in blocks:
                block.draw(part.energy, labels, generator)
        found.append(labels)
    return labels_in_rows(energy, parts, found, axis=1)


class _Block(NamedTuple):
    """Labels of one colour, and the tables that contain them.

    Args:
        variables: (labels,), the numbers of the labels.
        states: (labels,), the number of states of each label.
        owner: (tables,), for each table the index in ``variables`` of the label.
        first: (tables,), the first entry of each table; stride: (tables,), the label's stride in the table.
        others: (tables, order), the other labels of each table; strides: their strides, 0 for padding.
    """

    variables: Tensor
    states: Tensor
    owner: Tensor
    first: Tensor
    stride: Tensor
    others: Tensor
    strides: Tensor

    def to(self, device: torch.device) -> _Block:
        return _Block(*(each.to(device) for each in self))

    def draw(self, energy: FactorEnergy, labels: Tensor, generator: torch.Generator | None) -> None:
        """Draw the block's labels (samples, batch, labels) in place, given all other labels."""
        base = self.first + (labels[..., self.others] * self.strides).sum(-1)
        state = torch.arange(int(self.states.max()), device=labels.device)
        inside = state < self.states[:, None]
        entry = base[..., None] + self.stride[:, None] * torch.where(inside[self.owner], state, 0)
        table = energy.table.expand(*entry.shape[:2], -1)
        values = table.gather(-1, entry.flatten(2)).view(entry.shape)
        fields = values.new_zeros(*labels.shape[:-1], len(self.variables), len(state))
        fields = fields.index_add(2, self.owner, values).masked_fill(~inside, -torch.inf)
        chances = fields.softmax(-1).flatten(0, 2)
        drawn = torch.multinomial(chances, 1, generator=generator)
        labels[..., self.variables] = drawn.view(fields.shape[:-1])


@lru_cache(16)
def _blocks(structure: FactorScopes) -> tuple[_Block, ...]:
    """Colour the labels greedily in their order, and return a block for each colour."""
    around: list[set[int]] = [set() for _ in structure.num_states]
    tables: list[list[int]] = [[] for _ in structure.num_states]
    for number, scope in enumerate(structure.every_scope):
        for variable in scope:
            around[variable].update(scope)
            tables[variable].append(number)
    colour: list[int] = []
    for variable, others in enumerate(around):
        taken = {colour[other] for other in others if other < variable}
        colour.append(next(each for each in range(len(taken) + 1) if each not in taken))
    members, strides = structure.places
    blocks = []
    for wanted in range(max(colour) + 1):
        variables = [variable for variable, own in enumerate(colour) if own == wanted]
        owner = [place for place, variable in enumerate(variables) for _ in tables[variable]]
        numbers = np.array([number for variable in variables for number in tables[variable]])
        home = np.array(variables)[owner][:, None]
        # Variable 0 with stride 0 pads the tables of few labels: it is not the table's own label.
        is_own = (members[numbers] == home) & (strides[numbers] > 0)
        arrays = (
            np.array(variables),
            np.array(structure.num_states)[variables],
            np.array(owner),
            structure.first[numbers],
            np.where(is_own, strides[numbers], 0).sum(1),
            members[numbers],
            np.where(is_own, 0, strides[numbers]),
        )
        blocks.append(_Block(*(torch.from_numpy(each) for each in arrays)))
    return tuple(blocks)
