"""Random energies and partly known labels: seeded generators, and hypothesis strategies over them.

A strategy draws a description (sizes, strength, seed) rather than numbers, so that hypothesis shrinks to
small models, and a failing example prints as the call that makes it again.
"""

from __future__ import annotations

from itertools import combinations

import torch
from hypothesis import strategies as st
from torch import Tensor

from lmbm_torch.energies import DirectedEnergy

# From no dependence at all to fields that saturate every sigmoid.
COUPLINGS = (0.0, 0.1, 0.5, 1.0, 3.0, 30.0)


def random_directed_energy(
    seed: int,
    num_labels: int,
    batch_size: int = 3,
    *,
    coupling: float = 1.0,
    per_example: bool = False,
    num_cliques: int = 0,
    resolution: float | None = None,
    dtype: torch.dtype = torch.float64,
) -> DirectedEnergy:
    """A directed model in a random ordering, the same for the same arguments.

    Args:
        seed: of everything random.
        num_labels: K.
        batch_size: examples.
        coupling: standard deviation of parent and clique weights; unaries have 1.
        per_example: parents and clique weights differ between examples.
        num_cliques: higher-order parent cliques, or as many as K labels allow.
        resolution: round every weight to a multiple of it; with a power of two every sum is exact and ties
            are frequent.
        dtype: of every tensor; another one rounds the same model.
    """
    generator = torch.Generator().manual_seed(seed)

    def weights(scale: float, *shape: int) -> Tensor:
        values = scale * torch.randn(shape, generator=generator, dtype=torch.float64)
        return (values if resolution is None else (values / resolution).round() * resolution).to(dtype)

    leading = (batch_size,) if per_example else ()
    ordering = torch.randperm(num_labels, generator=generator)
    position = torch.argsort(ordering)
    parents = weights(coupling, *leading, num_labels, num_labels)
    parents = parents * (position[None, :] < position[:, None])
    cliques = [c for size in (3, 4) for c in combinations(range(num_labels), size)]
    chosen = torch.randperm(len(cliques), generator=generator)[:num_cliques].tolist()
    return DirectedEnergy(
        unary=weights(1.0, batch_size, num_labels),
        parents=parents,
        ordering=ordering,
        cliques=tuple(cliques[index] for index in chosen),
        clique_weight=weights(coupling, *leading, len(chosen)) if chosen else None,
    )


def random_known(seed: int, energy: DirectedEnergy, share: float = 0.5) -> Tensor:
    """A (batch, labels) tensor of {0, 1, NaN} in the energy's dtype, about ``share`` of it known."""
    generator = torch.Generator().manual_seed(seed)
    shape = (energy.batch_size, energy.num_labels)
    values = torch.randint(2, shape, generator=generator).to(energy.dtype)
    return values.masked_fill(torch.rand(shape, generator=generator) >= share, torch.nan)


def random_labels(seed: int, energy: DirectedEnergy) -> Tensor:
    """A (batch, labels) tensor of {0, 1}, int64."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(2, (energy.batch_size, energy.num_labels), generator=generator)


def directed_energies(
    *,
    min_labels: int = 1,
    max_labels: int = 6,
    max_batch: int = 4,
    resolution: float | None = None,
    dtypes: tuple[torch.dtype, ...] = (torch.float32, torch.float64),
) -> st.SearchStrategy[DirectedEnergy]:
    """Directed models of every form: weak to extreme, shared or per-example parents, with cliques or none."""
    return st.builds(
        random_directed_energy,
        seed=st.integers(0, 2**32 - 1),
        num_labels=st.integers(min_labels, max_labels),
        batch_size=st.integers(1, max_batch),
        coupling=st.sampled_from(COUPLINGS),
        per_example=st.booleans(),
        num_cliques=st.integers(0, 4),
        resolution=st.just(resolution),
        dtype=st.sampled_from(dtypes),
    )


@st.composite
def energies_with_known(
    draw: st.DrawFn, energies: st.SearchStrategy[DirectedEnergy] | None = None
) -> tuple[DirectedEnergy, Tensor]:
    """An energy, and labels of it that are known: none, some, different ones per example, or all."""
    energy = draw(directed_energies() if energies is None else energies)
    share = draw(st.sampled_from((0.0, 0.3, 0.7, 1.0)))
    return energy, random_known(draw(st.integers(0, 2**32 - 1)), energy, share)


def permuted(energy: DirectedEnergy, order: Tensor) -> DirectedEnergy:
    """The same model with label ``order[i]`` renamed to i."""
    new_name = torch.argsort(order).tolist()
    return DirectedEnergy(
        unary=energy.unary[:, order],
        parents=energy.parents[..., order, :][..., order],
        ordering=torch.argsort(order)[energy.ordering],
        cliques=tuple(tuple(new_name[label] for label in clique) for clique in energy.cliques),
        clique_weight=energy.clique_weight,
    )


def flipped(energy: DirectedEnergy, flip: Tensor) -> DirectedEnergy:
    """The same model with 0 and 1 exchanged for the labels where ``flip`` (labels,) is true."""
    sign = 1 - 2 * flip.to(energy.dtype)
    weight = energy.clique_weight
    if weight is not None:
        weight = weight * torch.stack([sign[list(clique)].prod() for clique in energy.cliques])
    return DirectedEnergy(
        unary=energy.unary * sign,
        parents=energy.parents * sign[:, None] * sign,
        ordering=energy.ordering,
        cliques=energy.cliques,
        clique_weight=weight,
    )
