"""Boltzmann machines of any kind as log-potentials of cliques, which eliminations of labels start from."""

from __future__ import annotations

from functools import reduce

import torch
from torch import Tensor

from lmbm_torch.energies import CliqueEnergy, PairwiseEnergy
from lmbm_torch.inference.parts.triangulation import Cliques
from lmbm_torch.shapes import Float

__all__ = ["EXCLUDED", "Machine", "cliques_of", "log_potentials", "parity"]

Machine = PairwiseEnergy | CliqueEnergy

# Log-potential of a value that is known not to be: far below any score, and no −∞ that a gradient would trip
# over.
EXCLUDED = -1e30


def cliques_of(energy: Machine) -> Cliques:
    """The cliques of two or more labels; couplings are some where they are not 0 for every example."""
    if isinstance(energy, CliqueEnergy):
        return tuple(clique for clique in energy.cliques if len(clique) > 1)
    coupled = energy.pairwise.detach() != 0
    if coupled.ndim == 3:
        coupled = coupled.any(0)
    return tuple(map(tuple, coupled.triu(1).nonzero().tolist()))


def log_potentials(energy: Machine, cliques: Cliques) -> tuple[Tensor, Tensor]:
    """The log-potentials of each label's spin, and of the product of each clique's spins."""
    if isinstance(energy, PairwiseEnergy):
        first, second = torch.tensor(cliques, dtype=torch.int64, device=energy.device).view(-1, 2).unbind(1)
        # Either direction is half of what the score takes.
        both = energy.pairwise[..., first, second] + energy.pairwise[..., second, first]
        return energy.unary, both / 2
    single = [index for index, clique in enumerate(energy.cliques) if len(clique) == 1]
    larger = [index for index, clique in enumerate(energy.cliques) if len(clique) > 1]
    names = [energy.cliques[index][0] for index in single]
    unary = energy.weight.new_zeros(*energy.weight.shape[:-1], energy.num_labels)
    place = torch.tensor(names, dtype=torch.int64, device=energy.device)
    return unary.index_add(-1, place, energy.weight[..., single]), energy.weight[..., larger]


def parity(order: int, like: Tensor) -> Float[Tensor, " labellings"]:
    """Π_i s_i of every labelling of a clique, its first label the most significant bit of its number."""
    spins = like.new_tensor([-1, 1])
    return reduce(lambda table, _: torch.outer(table, spins).flatten(), range(order - 1), spins)
