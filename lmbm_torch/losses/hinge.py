"""The sum of the labels' hinge losses, which large-margin training and decoding both minimise."""

from __future__ import annotations

from torch import Tensor

from lmbm_torch.checks import check_positive
from lmbm_torch.energies.base import MarginEnergy
from lmbm_torch.losses.missing import impute
from lmbm_torch.shapes import Float, Shaped
from lmbm_torch.verdicts import one_door


@one_door
def local_hinge(
    energy: MarginEnergy, labels: Shaped[Tensor, "batch labels"], margin: float = 1.0
) -> Float[Tensor, " batch"]:
    """Return Σ_i [margin − m_i]_+ of each example, with m_i the local margin of label i.

    large_margin_boltzmann_machines_2009, problem 3.3, where m_i depends on all other labels;
    lmbm_and_lmsbn_2010, Equations 5 and 6, where m_i depends only on earlier labels.

    Args:
        energy: a Boltzmann machine or a belief network; gradients flow to the energy's tensors.
        labels: {0, 1}, or for a belief network NaN for a missing label: the label's own hinge is left out,
            and as a parent the label has the greedy prediction of the model
            (:func:`lmbm_torch.losses.missing.impute`).
        margin: γ > 0, in units of the local fields.

    Raises:
        ValueError: ``labels`` whose shape or values are not as described above; NaN, infinity or a misplaced
            weight in the energy; a margin that is not a finite number above 0.

    Examples:
        >>> import torch
        >>> from lmbm_torch import PairwiseEnergy
        >>> from lmbm_torch.losses import local_hinge
        >>> energy = PairwiseEnergy(torch.tensor([[2.0, 0.5]]), torch.zeros(2, 2))
        >>> local_hinge(energy, torch.tensor([[1, 1]]))
        tensor([0.5000])
    """
    check_positive("margin", margin)
    complete, observed = impute(energy, labels)
    hinge = (margin - energy.local_margins(complete)).clamp_min(0)
    return (hinge * observed).sum(-1)
