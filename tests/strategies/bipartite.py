"""Random restricted Boltzmann machines, small enough to enumerate, and their states one by one."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import torch
from hypothesis import strategies as st
from torch import Tensor

from lmbm_torch.energies import BipartiteEnergy
from strategies.directed import COUPLINGS


def random_bipartite_energy(
    seed: int,
    num_visible: int,
    num_hidden: int,
    batch_size: int = 3,
    *,
    coupling: float = 1.0,
    bias: float = 1.0,
    resolution: float | None = None,
    dtype: torch.dtype = torch.float64,
) -> BipartiteEnergy:
    """A restricted Boltzmann machine, the same for the same arguments.

    Args:
        seed: of everything random.
        num_visible: V.
        num_hidden: H.
        batch_size: examples.
        coupling: standard deviation of the coupling.
        bias: standard deviation of the biases.
        resolution: round every weight to a multiple of it; with a power of two every sum is exact and ties
            are frequent.
        dtype: of every tensor; another one rounds the same model.
    """
    generator = torch.Generator().manual_seed(seed)

    def weights(scale: float, *shape: int) -> Tensor:
        values = scale * torch.randn(shape, generator=generator, dtype=torch.float64)
        return (values if resolution is None else (values / resolution).round() * resolution).to(dtype)

    return BipartiteEnergy(
        visible=weights(bias, batch_size, num_visible),
        hidden=weights(bias, batch_size, num_hidden),
        coupling=weights(coupling, num_visible, num_hidden),
    )


def random_forest_bipartite_energy(seed: int, num_visible: int, num_hidden: int) -> BipartiteEnergy:
    """A model whose coupling is a random forest, with strong weights."""
    energy = random_bipartite_energy(seed, num_visible, num_hidden, batch_size=2, coupling=2.0, bias=2.0)
    generator = torch.Generator().manual_seed(seed)
    pairs = list(product(range(num_visible), range(num_visible, num_visible + num_hidden)))
    tree = list(range(num_visible + num_hidden))
    mask = torch.zeros_like(energy.coupling)
    for index in torch.randperm(len(pairs), generator=generator).tolist():
        i, j = pairs[index]
        if tree[i] != tree[j] and torch.rand((), generator=generator) < 0.9:
            mask[i, j - num_visible] = 1
            tree = [tree[i] if name == tree[j] else name for name in tree]
    return replace(energy, coupling=energy.coupling * mask)


def random_known_visible(seed: int, energy: BipartiteEnergy, share: float = 0.5) -> Tensor:
    """A (batch, visible) tensor of {0, 1, NaN} in the energy's dtype, about ``share`` of it known."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randint(2, energy.visible.shape, generator=generator).to(energy.dtype)
    return values.masked_fill(torch.rand(values.shape, generator=generator) >= share, torch.nan)


def random_units(seed: int, energy: BipartiteEnergy) -> tuple[Tensor, Tensor]:
    """(batch, visible) and (batch, hidden) tensors of {0, 1}, int64."""
    generator = torch.Generator().manual_seed(seed)
    sides = (energy.visible, energy.hidden)
    visible, hidden = (torch.randint(2, side.shape, generator=generator) for side in sides)
    return visible, hidden


def bipartite_energies(
    *,
    max_visible: int = 5,
    max_hidden: int = 5,
    max_batch: int = 3,
    couplings: tuple[float, ...] = COUPLINGS,
    resolution: float | None = None,
    dtypes: tuple[torch.dtype, ...] = (torch.float64,),
) -> st.SearchStrategy[BipartiteEnergy]:
    """Restricted Boltzmann machines from one unit a side, uncoupled to extreme."""
    return st.builds(
        random_bipartite_energy,
        seed=st.integers(0, 2**32 - 1),
        num_visible=st.integers(1, max_visible),
        num_hidden=st.integers(1, max_hidden),
        batch_size=st.integers(1, max_batch),
        coupling=st.sampled_from(couplings),
        resolution=st.just(resolution),
        dtype=st.sampled_from(dtypes),
    )


@st.composite
def bipartite_with_known(
    draw: st.DrawFn, energies: st.SearchStrategy[BipartiteEnergy] | None = None
) -> tuple[BipartiteEnergy, Tensor]:
    """An energy, and visible units of it that are known: none, some, different ones per example, or all."""
    energy = draw(bipartite_energies() if energies is None else energies)
    share = draw(st.sampled_from((0.0, 0.3, 0.7, 1.0)))
    return energy, random_known_visible(draw(st.integers(0, 2**32 - 1)), energy, share)


def all_states(num_units: int) -> Tensor:
    """(2^units, units), the first unit as the most significant bit."""
    return torch.tensor(list(product((0, 1), repeat=num_units)))


def score_table(energy: BipartiteEnergy, known: Tensor | None = None) -> Tensor:
    """score(v, h) of each example, (batch, 2^visible, 2^hidden); −∞ for a v against what is known."""
    visible, hidden = all_states(energy.num_visible), all_states(energy.num_hidden)
    shape = (len(visible), len(hidden), energy.batch_size, -1)
    scores = energy.score(visible[:, None, None].expand(shape), hidden[:, None].expand(shape))
    scores = scores.movedim(-1, 0)
    if known is None:
        return scores
    against = ((visible != known[:, None]) & ~known[:, None].isnan()).any(-1)
    return scores.masked_fill(against[..., None], -torch.inf)


def permuted_units(energy: BipartiteEnergy, visible: Tensor, hidden: Tensor) -> BipartiteEnergy:
    """The same model with visible unit ``visible[i]`` and hidden unit ``hidden[j]`` renamed to i and j."""
    return BipartiteEnergy(
        energy.visible[:, visible], energy.hidden[:, hidden], energy.coupling[visible][:, hidden]
    )
