"""T of a batch: no training example that exact hinge decoding gets wrong has a smaller hinge loss."""

from __future__ import annotations

from torch import Tensor

from lmbm_torch.energies import CliqueEnergy, DirectedEnergy, MarginEnergy, PairwiseEnergy
from lmbm_torch.losses import directed_threshold, undirected_threshold
from lmbm_torch.shapes import Float


def least_threshold(energy: MarginEnergy, margin: float) -> Float[Tensor, ""]:
    """γ for a directed model, else the least :func:`~lmbm_torch.losses.undirected_threshold` of the batch."""
    if isinstance(energy, DirectedEnergy):
        return energy.unary.new_tensor(directed_threshold(margin))
    assert isinstance(energy, PairwiseEnergy | CliqueEnergy)
    return undirected_threshold(energy, margin).min()
