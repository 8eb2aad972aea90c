"""Label vectors drawn from chains, under rules or without."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lmbm_torch.constraints import Constraints
from lmbm_torch.energies import SequentialEnergy
from lmbm_torch.inference import ancestral

__all__ = ["of_mixture"]

# In a row that break rules, before there are no more.
MAX_DRAWS = 1000


def of_mixture(
    energies: Sequence[SequentialEnergy],
    num_samples: int,
    generator: torch.Generator,
    rules: Constraints | None = None,
) -> Tensor:
    """Codes drawn from the members' equal mixture, (num_samples, instances, labels).

    Args:
        rules: what breaks them is drawn again.

    Raises:
        ValueError: a thousand draws of an instance that break rules.
    """
    drawn = _drawn(energies, num_samples, generator)
    if rules is None:
        return drawn
    for _ in range(MAX_DRAWS):
        flat = drawn.flatten(0, 1).numpy()
        broken = torch.from_numpy(rules.violated(flat).any(1)).unflatten(0, drawn.shape[:2])
        rows = broken.any(0).nonzero()[:, 0]
        if not len(rows):
            return drawn
        again = _drawn([energy.select(rows) for energy in energies], num_samples, generator)
        drawn[:, rows] = torch.where(broken[:, rows, None], again, drawn[:, rows])
    raise ValueError(f"constraints: expected rules that draws obey, got {MAX_DRAWS} in a row that break them")


def _drawn(energies: Sequence[SequentialEnergy], num_samples: int, generator: torch.Generator) -> Tensor:
    which = torch.randint(len(energies), (num_samples,), generator=generator)
    drawn = torch.empty(num_samples, energies[0].batch_size, energies[0].num_labels, dtype=torch.int64)
    for member, energy in enumerate(energies):
        if count := int((which == member).sum()):
            drawn[which == member] = ancestral.sample(energy, count, generator=generator)
    return drawn
