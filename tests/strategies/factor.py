"""Random graphs of tables, for tests of what is computed on them."""

from __future__ import annotations

from itertools import product

import numpy as np
import torch
from torch import Tensor

from lmbm_torch.energies import FactorEnergy


def random_factor_energy(
    seed: int,
    *,
    batch: int = 2,
    num_states: tuple[int, ...] = (2, 3, 2, 4),
    order: int = 3,
    num_factors: int = 5,
    forbidden: float = 0.0,
    scale: float = 1.0,
    dtype: torch.dtype = torch.float64,
) -> FactorEnergy:
    """Unaries, and scopes of up to ``order`` variables; a share of the entries is −∞, never for all 0."""
    random = np.random.default_rng(seed)
    variables = len(num_states)
    scopes = [(variable,) for variable in range(variables)]
    for _ in range(num_factors):
        size = int(random.integers(2, order + 1)) if variables > 1 else 1
        scopes.append(tuple(map(int, random.permutation(variables)[: min(size, variables)])))
    factors = []
    for scope in scopes:
        table = scale * random.normal(size=(batch, *(num_states[each] for each in scope)))
        out = random.random(table.shape) < forbidden
        out.reshape(batch, -1)[:, 0] = False
        factors.append((scope, torch.from_numpy(np.where(out, -np.inf, table)).to(dtype)))
    return FactorEnergy.of(num_states, factors)


def packed_energy(seed: int, **form) -> FactorEnergy:
    """Three graphs of different sizes."""
    shapes = (2, 3, 2), (3, 2), (2, 2, 3, 2)
    each = [
        random_factor_energy(seed + 7 * row, batch=1, num_states=shape, **form)
        for row, shape in enumerate(shapes)
    ]
    return FactorEnergy.packed(each)


def random_known_states(seed: int, energy: FactorEnergy) -> Tensor:
    """Half of the labels, of a labelling that is always allowed."""
    generator = torch.Generator().manual_seed(seed)
    shape = energy.batch_size, energy.num_labels
    hidden = torch.rand(shape, generator=generator) < 0.5
    return torch.zeros(shape, dtype=torch.float64).masked_fill(hidden, torch.nan)


def every_labelling(energy: FactorEnergy) -> Tensor:
    """All labellings of a graph that is not packed, (labellings, 1, variables)."""
    return torch.tensor([*product(*map(range, energy.structure.num_states))])[:, None]
