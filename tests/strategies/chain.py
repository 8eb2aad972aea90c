"""Random chains: a seeded generator, a hypothesis strategy, and enumeration of a chain's labellings."""

from __future__ import annotations

from itertools import product

import torch
from hypothesis import strategies as st
from torch import Tensor

from lmbm_torch.energies import ChainEnergy
from lmbm_torch.energies.chain import PADDING

# From no dependence to potentials of 1e4, where all but one labelling vanishes.
SCALES = (0.0, 0.1, 1.0, 10.0, 100.0, 1e4)


def random_chain_energy(
    seed: int,
    max_length: int = 5,
    num_states: int = 3,
    batch_size: int = 4,
    *,
    scale: float = 1.0,
    per_step: bool = False,
    ragged: bool = True,
    forbidden: float = 0.0,
    dtype: torch.dtype = torch.float64,
) -> ChainEnergy:
    """Chains with NaN for padding, the same for the same arguments.

    Args:
        seed: of everything random.
        max_length: of the longest chain, if not ``ragged`` of every one.
        num_states: S.
        batch_size: chains.
        scale: standard deviation of every log-potential.
        per_step: transitions differ between steps and chains.
        ragged: lengths are drawn, else all are the same.
        forbidden: share of log-potentials that are −∞, none of state 0, so that every chain is possible.
        dtype: of every tensor; another one rounds the same model.
    """
    generator = torch.Generator().manual_seed(seed)

    def log_potentials(*shape: int) -> Tensor:
        excluded = torch.rand(shape, generator=generator) < forbidden
        excluded[..., 0] = False
        values = torch.randn(shape, generator=generator, dtype=torch.float64)
        return (scale * values).masked_fill(excluded, -torch.inf)

    lengths = torch.full((batch_size,), max_length)
    if ragged:
        lengths = torch.randint(1, max_length + 1, (batch_size,), generator=generator)
    leading = (batch_size, max_length - 1) if per_step else ()
    unary = log_potentials(batch_size, max_length, num_states)
    transition = log_potentials(*leading, num_states, num_states)
    inside = torch.arange(max_length) < lengths[:, None]
    unary[~inside] = torch.nan
    if per_step:
        transition[~inside[:, 1:]] = torch.nan
    return ChainEnergy(unary.to(dtype), transition.to(dtype), lengths)


def chain_energies(*, max_length: int = 5, max_states: int = 4) -> st.SearchStrategy[ChainEnergy]:
    """Chains of every form: shared or own transitions, one length or many, with forbidden ones or none."""
    return st.builds(
        random_chain_energy,
        seed=st.integers(0, 2**32 - 1),
        max_length=st.integers(1, max_length),
        num_states=st.integers(1, max_states),
        batch_size=st.integers(1, 4),
        scale=st.sampled_from(SCALES),
        per_step=st.booleans(),
        ragged=st.booleans(),
        forbidden=st.sampled_from((0.0, 0.4)),
    )


def labellings(energy: ChainEnergy, example: int) -> tuple[Tensor, Tensor]:
    """Every labelling of a chain, (labellings, length) padded, and its score, by plain numbers."""
    length = int(energy.lengths[example])
    shared = energy.transition.ndim == 2
    steps = energy.transition.expand(energy.max_length - 1, -1, -1) if shared else energy.transition[example]
    unary, steps = energy.unary[example].tolist(), steps.tolist()
    labels = list(product(range(energy.num_states), repeat=length))
    scores = [
        sum(unary[t][state] for t, state in enumerate(states))
        + sum(steps[t][states[t]][states[t + 1]] for t in range(length - 1))
        for states in labels
    ]
    padding = (PADDING,) * (energy.max_length - length)
    return torch.tensor([states + padding for states in labels]), torch.tensor(scores, dtype=torch.float64)


def with_states_renamed(energy: ChainEnergy, order: Tensor) -> ChainEnergy:
    """The same chains with state ``order[i]`` renamed to i."""
    transition = energy.transition[..., order, :][..., order]
    return ChainEnergy(energy.unary[..., order], transition, energy.lengths)
