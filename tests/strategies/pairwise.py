"""Random Boltzmann machines: seeded generators, and hypothesis strategies over them.

As in ``strategies.directed``, a strategy draws a description, so that a failing example prints as the call
that makes it again.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import torch
from hypothesis import strategies as st
from torch import Tensor

from lmbm_torch.energies import CliqueEnergy, PairwiseEnergy
from strategies.directed import COUPLINGS


def random_pairwise_energy(
    seed: int,
    num_labels: int,
    batch_size: int = 3,
    *,
    coupling: float = 1.0,
    per_example: bool = False,
    density: float = 1.0,
    dtype: torch.dtype = torch.float64,
) -> PairwiseEnergy:
    """A pairwise Boltzmann machine, the same for the same arguments.

    Args:
        seed: of everything random.
        num_labels: K.
        batch_size: examples.
        coupling: standard deviation of the couplings; unaries and constants have 1.
        per_example: couplings differ between examples.
        density: the share of pairs that are coupled.
        dtype: of every tensor; another one rounds the same model.
    """
    generator = torch.Generator().manual_seed(seed)
    leading = (batch_size,) if per_example else ()

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    upper = coupling * normal(*leading, num_labels, num_labels).triu(1)
    upper = upper * (torch.rand(num_labels, num_labels, generator=generator) < density)
    unary, constant = normal(batch_size, num_labels), normal(batch_size)
    return PairwiseEnergy(unary.to(dtype), (upper + upper.mT).to(dtype), constant.to(dtype))


def random_forest_energy(
    seed: int,
    num_labels: int,
    batch_size: int = 3,
    *,
    coupling: float = 1.0,
    dtype: torch.dtype = torch.float64,
) -> PairwiseEnergy:
    """As :func:`random_pairwise_energy`, where each example's couplings form a forest of its own."""
    energy = random_pairwise_energy(
        seed, num_labels, batch_size, coupling=coupling, per_example=True, dtype=dtype
    )
    generator = torch.Generator().manual_seed(seed)
    kept = torch.zeros_like(energy.pairwise)
    for example in range(batch_size):
        names = torch.randperm(num_labels, generator=generator).tolist()
        for place in range(1, num_labels):
            if torch.rand((), generator=generator) < 0.9:
                parent = names[int(torch.randint(place, (), generator=generator))]
                kept[example, names[place], parent] = kept[example, parent, names[place]] = 1
    return PairwiseEnergy(energy.unary, energy.pairwise * kept, energy.constant)


def random_clique_energy(
    seed: int,
    num_labels: int,
    batch_size: int = 3,
    *,
    coupling: float = 1.0,
    per_example: bool = False,
    num_cliques: int = 6,
    max_order: int = 4,
    dtype: torch.dtype = torch.float64,
) -> CliqueEnergy:
    """A Boltzmann machine whose cliques are drawn with replacement, the same for the same arguments.

    Args:
        seed: of everything random.
        num_labels: K.
        batch_size: examples.
        coupling: standard deviation of the weights.
        per_example: weights differ between examples.
        num_cliques: some may be the same set of labels, in another order.
        max_order: the most labels of a clique.
        dtype: of every tensor; another one rounds the same model.
    """
    generator = torch.Generator().manual_seed(seed)
    sets = [c for size in range(1, max_order + 1) for c in combinations(range(num_labels), size)]
    drawn = torch.randint(len(sets), (num_cliques,), generator=generator).tolist()
    cliques = tuple(sets[index][:: (-1) ** place] for place, index in enumerate(drawn))
    leading = (batch_size,) if per_example else ()
    weight = coupling * torch.randn(*leading, num_cliques, generator=generator, dtype=torch.float64)
    constant = torch.randn(batch_size, generator=generator, dtype=torch.float64)
    return CliqueEnergy(cliques, weight.to(dtype), constant.to(dtype), num_labels)


def pairwise_energies(
    *,
    min_labels: int = 1,
    max_labels: int = 6,
    max_batch: int = 4,
    dtypes: tuple[torch.dtype, ...] = (torch.float64,),
) -> st.SearchStrategy[PairwiseEnergy]:
    """Pairwise models of every form: weak to extreme, sparse to complete, shared or per-example couplings."""
    return st.builds(
        random_pairwise_energy,
        seed=st.integers(0, 2**32 - 1),
        num_labels=st.integers(min_labels, max_labels),
        batch_size=st.integers(1, max_batch),
        coupling=st.sampled_from(COUPLINGS),
        per_example=st.booleans(),
        density=st.sampled_from((0.3, 1.0)),
        dtype=st.sampled_from(dtypes),
    )


def clique_energies(
    *, max_labels: int = 6, max_batch: int = 4, max_order: int = 4
) -> st.SearchStrategy[CliqueEnergy]:
    """Models with cliques of every order, or none, shared or per-example weights."""
    return st.builds(
        random_clique_energy,
        seed=st.integers(0, 2**32 - 1),
        num_labels=st.integers(1, max_labels),
        batch_size=st.integers(1, max_batch),
        coupling=st.sampled_from(COUPLINGS),
        per_example=st.booleans(),
        num_cliques=st.integers(0, 8),
        max_order=st.just(max_order),
    )


def labels_of(seed: int, energy: PairwiseEnergy | CliqueEnergy) -> Tensor:
    """A (batch, labels) tensor of {0, 1}, int64."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(2, (energy.batch_size, energy.num_labels), generator=generator)


def all_labellings(num_labels: int) -> Tensor:
    """Every labelling, (2^labels, 1, labels), label 0 the most significant bit."""
    numbers = torch.arange(2**num_labels)[:, None, None]
    return numbers >> torch.arange(num_labels - 1, -1, -1) & 1


def renamed(energy: PairwiseEnergy, order: Tensor) -> PairwiseEnergy:
    """The same model with label ``order[i]`` renamed to i."""
    pairwise = energy.pairwise[..., order, :][..., order]
    return PairwiseEnergy(energy.unary[:, order], pairwise, energy.constant)


def exchanged(energy: PairwiseEnergy, flip: Tensor) -> PairwiseEnergy:
    """The same model with 0 and 1 exchanged for the labels where ``flip`` (labels,) is true."""
    sign = 1 - 2 * flip.to(energy.dtype)
    return PairwiseEnergy(energy.unary * sign, energy.pairwise * sign[:, None] * sign, energy.constant)


def cliques_renamed(energy: CliqueEnergy, order: Tensor) -> CliqueEnergy:
    """The same model with label ``order[i]`` renamed to i."""
    name = torch.argsort(order).tolist()
    cliques = tuple(tuple(name[label] for label in clique) for clique in energy.cliques)
    return replace(energy, cliques=cliques)


def cliques_exchanged(energy: CliqueEnergy, flip: Tensor) -> CliqueEnergy:
    """The same model with 0 and 1 exchanged for the labels where ``flip`` (labels,) is true."""
    sign = 1 - 2 * flip.to(energy.dtype)
    return replace(energy, weight=energy.weight * torch.stack([sign[list(c)].prod() for c in energy.cliques]))
