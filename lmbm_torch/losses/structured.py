"""The margin-rescaled hinge of whole labellings, with the Hamming loss: the loss of structural SVMs.

Source: Tsochantaridis et al., "Support vector machine learning for interdependent and structured output
spaces", ICML 2004; the peer of large_margin_boltzmann_machines_2009, section 3.1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from torch import Tensor

from lmbm_torch.checks import check_positive
from lmbm_torch.energies.bipartite import BipartiteEnergy
from lmbm_torch.energies.clique import CliqueEnergy
from lmbm_torch.energies.pairwise import PairwiseEnergy
from lmbm_torch.inference.enumeration import exact
from lmbm_torch.inference.results import Decoding
from lmbm_torch.losses.missing import check_complete
from lmbm_torch.shapes import Float, Shaped
from lmbm_torch.verdicts import one_door

Undirected = TypeVar("Undirected", PairwiseEnergy, CliqueEnergy)
Augmentable = TypeVar("Augmentable", PairwiseEnergy, CliqueEnergy, BipartiteEnergy)


def loss_augment(
    energy: Augmentable, labels: Shaped[Tensor, "batch labels"], slope: float = 1.0
) -> Augmentable:
    """The energy whose score is larger by slope · Σ_i (1 − 2 t_i) y_i, for the true labels t.

    That is the Hamming loss slope · Σ_i [y_i ≠ t_i] less slope · Σ_i t_i, which does not depend on y: any
    decoder of this energy finds the labelling of largest score + loss.

    Args:
        labels: {0, 1}, complete; of a bipartite energy its visible units.
        slope: > 0, what each wrong label costs, in units of the score.

    Raises:
        ValueError: labels of another shape or with other values; a slope that is not a finite number above 0.
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
    """max_y [slope · Σ_i [y_i ≠ t_i] + score(y)] − score(t), for the true labels t.

    Args:
        energy: a Boltzmann machine; gradients flow to its tensors, but not through the maximisation.
        labels: t, {0, 1}.
        slope: > 0, what each wrong label costs.
        inference: energy → the labelling of largest score, such as
            :func:`lmbm_torch.inference.relaxations.integer_program.decode`; by default enumeration, for few
            labels. If it misses the maximum, the loss is a lower bound and may be negative.

    Raises:
        ValueError: labels of another shape or with other values; an energy that ``inference`` refuses; a
            slope that is not a finite number above 0.
    """
    augmented = loss_augment(energy, labels, slope)
    worst = inference(augmented).labels
    return augmented.score(worst) - augmented.score(labels)
