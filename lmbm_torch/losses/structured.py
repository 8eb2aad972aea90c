"""The margin-rescaled hinge of whole labellings with the Hamming loss: the loss of structural SVMs.

Source: Tsochantaridis et al., "Support vector machine learning for interdependent and structured output
spaces", ICML 2004; compared in large_margin_boltzmann_machines_2009, section 3.1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from torch import Tensor

from lmbm_torch.checks import check_positive
from lmbm_torch.energies.bipartite import BipartiteEnergy
from lmbm_torch.energies.clique import CliqueEnergy
from lmbm_torch.energies.pairwise import PairwiseEnergy
from lmbm_torch.inference.common.results import Decoding
from lmbm_torch.inference.enumeration import exact
from lmbm_torch.losses.missing import check_complete
from lmbm_torch.shapes import Float, Shaped
from lmbm_torch.verdicts import one_door

Undirected = TypeVar("Undirected", PairwiseEnergy, CliqueEnergy)
Augmentable = TypeVar("Augmentable", PairwiseEnergy, CliqueEnergy, BipartiteEnergy)


def loss_augment(
    energy: Augmentable, labels: Shaped[Tensor, "batch labels"], slope: float = 1.0
) -> Augmentable:
    """Return the energy with slope · Σ_i (1 − 2 t_i) y_i added to the score, for the true labels t.

    The sum is the Hamming loss slope · Σ_i [y_i ≠ t_i] minus slope · Σ_i t_i, a constant in y: any decoder
    of the energy finds the labelling of largest score + loss.

    Args:
        energy: an undirected energy.
        labels: {0, 1}, without missing labels; for a bipartite energy the visible units.
        slope: > 0, the cost of each wrong label, in units of the score.

    Raises:
        ValueError: ``labels`` whose shape or values are not as described above; a slope that is not a finite
            number above 0.

    Examples:
        >>> import torch
        >>> from lmbm_torch import PairwiseEnergy, decode
        >>> from lmbm_torch.losses.structured import loss_augment
        >>> energy = PairwiseEnergy(torch.tensor([[2.0, 0.25]]), torch.zeros(2, 2))
        >>> decode(loss_augment(energy, torch.ones(1, 2))).labels
        tensor([[1, 0]])
    """
    check_positive("slope", slope)
    check_complete(energy, labels)
    return energy.add_unary(slope * (1 - 2 * labels.to(energy.dtype)))


@one_door
def structured_hinge(
    energy: Undirected,
    labels: Shaped[Tensor, "batch labels"],
    *,
    slope: float = 1.0,
    inference: Callable[[Undirected], Decoding] = exact.decode,
) -> Float[Tensor, " batch"]:
    """Return max_y [slope · Σ_i [y_i ≠ t_i] + score(y)] − score(t), for the true labels t.

    Args:
        energy: a Boltzmann machine; gradients flow to the energy's tensors, but not through the maximisation.
        labels: t, {0, 1}.
        slope: > 0, the cost of each wrong label.
        inference: energy → the labelling of largest score, such as
            :func:`lmbm_torch.inference.relaxations.integer_program.decode`; by default enumeration, for few
            labels. If the routine misses the maximum, the loss is a lower bound and may be negative.

    Raises:
        ValueError: ``labels`` whose shape or values are not as described above; an energy that ``inference``
            refuses; a slope that is not a finite number above 0.

    Examples:
        >>> import torch
        >>> from lmbm_torch import PairwiseEnergy
        >>> from lmbm_torch.losses import structured_hinge
        >>> energy = PairwiseEnergy(torch.tensor([[2.0, 0.25]]), torch.zeros(2, 2))
        >>> structured_hinge(energy, torch.ones(1, 2))
        tensor([0.5000])
    """
    augmented = loss_augment(energy, labels, slope)
    worst = inference(augmented).labels
    return augmented.score(worst) - augmented.score(labels)
