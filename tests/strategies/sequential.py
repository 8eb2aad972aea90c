"""Random distributions that are asked for label by label, from tables of every prefix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

import torch
from torch import Tensor

from lmbm_torch.energies import SequentialEnergy


def random_sequential_energy(
    seed: int,
    num_states: Sequence[int] = (2, 3, 2, 1, 2),
    batch_size: int = 3,
    *,
    sharpness: float = 1.0,
    impossible: float = 0.0,
    dtype: torch.dtype = torch.float64,
) -> SequentialEnergy:
    """Labels in a random ordering, each with a distribution of its own after every prefix.

    Args:
        num_states: values of each label.
        sharpness: standard deviation of the log-odds.
        impossible: the share of values that have probability 0; never all of a label.
        dtype: of results.
    """
    generator = torch.Generator().manual_seed(seed)
    ordering = torch.randperm(len(num_states), generator=generator).tolist()
    states = [num_states[label] for label in ordering]
    tables = []
    for position, count in enumerate(states):
        shape = (batch_size, prod(states[:position]), count)
        logits = sharpness * torch.randn(shape, generator=generator, dtype=torch.float64)
        never = torch.rand(shape, generator=generator) < impossible
        never[..., 0] = False
        tables.append(logits.masked_fill(never, -torch.inf).log_softmax(-1))

    def conditional(position: int, rows: Tensor, earlier: Tensor) -> Tensor:
        number = torch.zeros_like(rows)
        for place in range(position):
            number = number * states[place] + earlier[:, place]
        return tables[position][rows, number]

    return SequentialEnergy(batch_size, tuple(num_states), tuple(ordering), conditional, dtype)


def random_chains(seed: int, num_members: int, **form) -> tuple[SequentialEnergy, ...]:
    """Several over the same labels, each in an ordering of its own."""
    return tuple(random_sequential_energy(10 * seed + member, **form) for member in range(num_members))


def random_known_values(seed: int, energy: SequentialEnergy) -> Tensor:
    """Labels that are known, about a third of them, NaN for the others."""
    generator = torch.Generator().manual_seed(seed)
    shape = (energy.batch_size, energy.num_labels)
    values = (torch.rand(shape, generator=generator) * torch.tensor(energy.num_states)).floor()
    return values.double().masked_fill(torch.rand(shape, generator=generator) > 0.35, torch.nan)


def relabelled(energy: SequentialEnergy, order: Tensor) -> SequentialEnergy:
    """The same distribution, its labels in another order."""
    place = order.argsort().tolist()
    return replace(
        energy,
        num_states=tuple(energy.num_states[label] for label in order.tolist()),
        ordering=tuple(place[label] for label in energy.ordering),
    )


def spoiled(energy: SequentialEnergy, value: float) -> SequentialEnergy:
    """One whose distributions all hold a number that does not belong there."""

    def conditional(position: int, rows: Tensor, earlier: Tensor) -> Tensor:
        table = energy.conditional(position, rows, earlier).clone()
        table[:, 0] = value
        return table

    return replace(energy, conditional=conditional)
