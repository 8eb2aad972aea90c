"""Losses of relaxed labels (numbers in [0, 1]), for models too large for exact inference.

For the structured hinge, inference need not be differentiable: the gradient is the statistics of the relaxed
maximiser minus the statistics of the truth. The other losses need relaxed labels that are a differentiable
function of the energy, such as
:func:`lmbm_torch.inference.relaxations.lp_layer.relaxed_labels`,
:func:`lmbm_torch.inference.relaxations.sparse_map.marginals` or a differentiable routine of your own.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from lmbm_torch.energies.base import to_spins
from lmbm_torch.energies.pairwise import PairwiseEnergy
from lmbm_torch.inference.common.results import Decoding
from lmbm_torch.inference.enumeration import exact
from lmbm_torch.inference.relaxations import sparse_map
from lmbm_torch.losses.missing import check_complete
from lmbm_torch.losses.structured import loss_augment
from lmbm_torch.shapes import Float, Shaped
from lmbm_torch.verdicts import one_door


@one_door
def relaxed_structured_hinge(
    energy: PairwiseEnergy,
    labels: Shaped[Tensor, "batch labels"],
    *,
    inference: Callable[[PairwiseEnergy], Decoding],
    slope: float = 1.0,
) -> Float[Tensor, " batch"]:
    """Return the largest slope · Hamming loss + score over the local polytope, minus the score of the truth.

    The loss is at least :func:`lmbm_torch.losses.structured_hinge`, which maximises over labellings, and is
    convex in the weights. The loss is zero only if no labelling has a larger loss + score than the truth t;
    see Finley and Joachims, "Training structural SVMs when exact inference is intractable", ICML 2008, §4.

    Args:
        energy: a Boltzmann machine; gradients flow to the energy's tensors, but not through the maximisation.
        labels: t, {0, 1}.
        inference: function of an energy that returns the relaxed labels of largest score, such as
            :func:`lmbm_torch.inference.relaxations.lp_relaxation.decode`.
        slope: > 0, the cost of each wrong label, in units of the score.

    Raises:
        ValueError: ``labels`` have another shape or other values than described above; ``inference`` refuses
            the energy; ``inference`` returns no relaxed labels; the slope is not a finite number above 0.

    Examples:
        >>> import torch
        >>> from lmbm_torch import PairwiseEnergy
        >>> from lmbm_torch.inference.relaxations import lp_relaxation
        >>> from lmbm_torch.losses.relaxed import relaxed_structured_hinge
        >>> energy = PairwiseEnergy(torch.ones(1, 2), torch.zeros(2, 2))
        >>> relaxed_structured_hinge(energy, torch.ones(1, 2), inference=lp_relaxation.decode).round()
        tensor([0.])
    """
    augmented = loss_augment(energy, labels, slope)
    relaxed = inference(augmented).relaxed
    if relaxed is None:
        raise ValueError(
            "inference: expected a routine that gives relaxed labels, such as lp_relaxation.decode"
        )
    return relaxed_score(augmented, relaxed) - augmented.score(labels)


def relaxed_score(energy: PairwiseEnergy, relaxed: Float[Tensor, "batch labels"]) -> Float[Tensor, " batch"]:
    """Return the largest score in the local polytope with the given marginals of labels.

    With spins in [−1, 1], the product of spins i and j is at most 1 − |s_i − s_j| and at least |s_i + s_j| −
    1. The upper limit is best for positive couplings, the lower limit for negative couplings.

    Args:
        energy: a Boltzmann machine; gradients flow to the energy's tensors.
        relaxed: the labels' marginals in [0, 1].
    """
    spins = to_spins(relaxed, energy.dtype)
    first, second = spins[:, :, None], spins[:, None]
    products = (1 - (first - second).abs()).where(energy.pairwise > 0, first * second)
    products = ((first + second).abs() - 1).where(energy.pairwise < 0, products)
    pairs = (energy.pairwise * products).sum((-2, -1)) / 2
    return (energy.unary * spins).sum(-1) + pairs + energy.constant


def relaxed_hamming(
    energy: PairwiseEnergy,
    labels: Shaped[Tensor, "batch labels"],
    *,
    inference: Callable[[PairwiseEnergy], Tensor],
) -> Float[Tensor, " batch"]:
    """Return Σ_i |μ_i − t_i| for relaxed labels μ and true labels t: for marginals the expected Hamming loss.

    Args:
        energy: a Boltzmann machine.
        labels: t, {0, 1}.
        inference: function of an energy that returns μ in [0, 1], differentiable in the energy, such as
            :func:`lmbm_torch.inference.relaxations.lp_layer.relaxed_labels`.

    Raises:
        ValueError: ``labels`` have another shape or other values than described above; ``inference`` refuses
            the energy.

    Examples:
        >>> import torch
        >>> from lmbm_torch import PairwiseEnergy
        >>> from lmbm_torch.losses.relaxed import relaxed_hamming
        >>> energy = PairwiseEnergy(torch.zeros(1, 2), torch.zeros(2, 2))
        >>> relaxed_hamming(energy, torch.ones(1, 2), inference=lambda energy: torch.sigmoid(energy.unary))
        tensor([1.])
    """
    check_complete(energy, labels)
    truth = labels.to(energy.dtype)
    return (truth + (1 - 2 * truth) * inference(energy)).sum(-1)


def relaxed_squared_error(
    energy: PairwiseEnergy,
    labels: Shaped[Tensor, "batch labels"],
    *,
    inference: Callable[[PairwiseEnergy], Tensor],
) -> Float[Tensor, " batch"]:
    """Return the Brier score Σ_i (μ_i − t_i)² of relaxed labels μ; arguments: see :func:`relaxed_hamming`.

    Examples:
        >>> import torch
        >>> from lmbm_torch import PairwiseEnergy
        >>> from lmbm_torch.losses.relaxed import relaxed_squared_error
        >>> energy = PairwiseEnergy(torch.zeros(1, 2), torch.zeros(2, 2))
        >>> relaxed_squared_error(energy, torch.ones(1, 2), inference=lambda energy: energy.unary + 0.5)
        tensor([0.5000])
    """
    check_complete(energy, labels)
    return (inference(energy) - labels.to(energy.dtype)).square().sum(-1)


def sparse_map_loss(
    energy: PairwiseEnergy,
    labels: Shaped[Tensor, "batch labels"],
    *,
    temperature: float = 1.0,
    inference: Callable[[PairwiseEnergy], Decoding] = exact.decode,
) -> Float[Tensor, " batch"]:
    """Return the SparseMAP loss, SparseMAP's largest objective minus the objective at the true labels t.

    With K labels the loss is max_p {E[score] − temperature/2 Σ_i E[s_i]²} − score(t) + temperature/2 · K:
    convex, smooth, and 0 if and only if SparseMAP gives t all probability (Niculae et al., ICML 2018, §3.3).

    Args:
        energy: a Boltzmann machine; gradients flow to the energy's tensors.
        labels: t, {0, 1}.
        temperature: > 0, in units of the score.
        inference: function of an energy that returns the labelling of largest score, such as
            :func:`lmbm_torch.inference.relaxations.integer_program.decode`; by default enumeration.

    Raises:
        ValueError: ``labels`` have another shape or other values than described above; SparseMAP refuses the
            energy.

    Examples:
        >>> import torch
        >>> from lmbm_torch import PairwiseEnergy
        >>> from lmbm_torch.losses.relaxed import sparse_map_loss
        >>> energy = PairwiseEnergy(torch.zeros(1, 2), torch.zeros(2, 2))
        >>> sparse_map_loss(energy, torch.ones(1, 2)).round(decimals=2)
        tensor([1.])
    """
    check_complete(energy, labels)
    found = sparse_map.marginals(energy, temperature=temperature, decoder=inference)
    return found.objective - energy.score(labels) + temperature / 2 * energy.num_labels
