"""T of a batch: no training example that exact hinge decoding gets wrong has a smaller hinge loss."""

from __future__ import annotations

import torch
from torch import Tensor

from lmbm_torch.energies import CliqueEnergy, DirectedEnergy, MarginEnergy, PairwiseEnergy
from lmbm_torch.losses import directed_threshold
from lmbm_torch.shapes import Float


def least_threshold(energy: MarginEnergy, margin: float) -> Float[Tensor, ""]:
    """γ for a directed model; for an undirected one min [γ − Σ_{j ∈ S_i} |w_j f_j|]_+ over examples and i.

    S_i are the cliques that label i shares with others (large_margin_boltzmann_machines_2009, Remark 4.2,
    with each example's own |f_j| in place of their supremum).
    """
    if isinstance(energy, DirectedEnergy):
        return energy.unary.new_tensor(directed_threshold(margin))
    if isinstance(energy, PairwiseEnergy):
        pull = energy.pairwise.abs().sum(-1)
    else:
        assert isinstance(energy, CliqueEnergy)
        couples = torch.tensor([len(clique) > 1 for clique in energy.cliques], device=energy.device)
        pull = (energy.weight.abs() * couples) @ energy.membership.mT
    return (margin - pull.max()).clamp_min(0)
