"""Hinge losses of single labels and of whole labellings (structural SVMs); and the log loss of chains.

The hinge of labellings rescales the margin by the Hamming loss. Source: Tsochantaridis et al., "Support
vector machine learning for interdependent and structured output spaces", ICML 2004; compared with local
hinges in large_margin_boltzmann_machines_2009, section 3.1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

from lmbm_torch.checks import check_positive
from lmbm_torch.energies.base import MarginEnergy
from lmbm_torch.energies.bipartite import BipartiteEnergy
from lmbm_torch.energies.chain import ChainEnergy
from lmbm_torch.energies.clique import CliqueEnergy
from lmbm_torch.energies.pairwise import PairwiseEnergy
from lmbm_torch.inference.common.results import Decoding
from lmbm_torch.inference.enumeration import exact
from lmbm_torch.inference.trees import chain_dp
from lmbm_torch.losses.missing import check_complete, impute
from lmbm_torch.shapes import Float, Int, Shaped
from lmbm_torch.verdicts import one_door


@one_door
def local_hinge(
    energy: MarginEnergy, labels: Shaped[Tensor, "batch labels"], margin: float = 1.0
) -> Float[Tensor, " batch"]:
    """Return for each example Σ_i [margin − m_i]_+, with m_i the local margin of label i.

    In a Boltzmann machine (large_margin_boltzmann_machines_2009, problem 3.3) m_i depends on all other
    labels, in a belief network (lmbm_and_lmsbn_2010, Equations 5 and 6) only on earlier labels.

    Args:
        energy: a Boltzmann machine or a belief network; gradients flow to the energy's tensors.
        labels: {0, 1}, or for a belief network NaN for a missing label, whose own hinge is left out; as a
            parent of other labels, a missing label has the model's greedy prediction
            (:func:`lmbm_torch.losses.missing.impute`).
        margin: γ > 0, in units of the local fields.

    Raises:
        ValueError: ``labels`` have another shape or other values than described above; the energy contains
            NaN, infinity or a misplaced weight; the margin is not a finite number above 0.

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


Undirected = TypeVar("Undirected", PairwiseEnergy, CliqueEnergy)
Augmentable = TypeVar("Augmentable", PairwiseEnergy, CliqueEnergy, BipartiteEnergy)


def loss_augment(
    energy: Augmentable, labels: Shaped[Tensor, "batch labels"], slope: float = 1.0
) -> Augmentable:
    """Return the energy with slope · Σ_i (1 − 2 t_i) y_i added to the score, for the true labels t.

    The sum is slope times the Hamming loss Σ_i [y_i ≠ t_i] minus a constant, slope · Σ_i t_i: so a decoder
    of the new energy finds the labelling y of largest score + loss.

    Args:
        energy: an undirected energy.
        labels: {0, 1}, without missing labels; for a bipartite energy the visible units.
        slope: > 0, the cost of each wrong label, in units of the score.

    Raises:
        ValueError: ``labels`` have another shape or other values than described above; the slope is not a
            finite number above 0.

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
        inference: function of an energy that returns the labelling of largest score, such as
            :func:`lmbm_torch.inference.relaxations.integer_program.decode`; by default enumeration, for few
            labels. If the routine misses the maximum, the loss is a lower bound and may be negative.

    Raises:
        ValueError: ``labels`` have another shape or other values than described above; ``inference`` refuses
            the energy; the slope is not a finite number above 0.

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


@one_door
def chain_negative_log_likelihood(
    energy: ChainEnergy, labels: Int[Tensor, "batch length"]
) -> Float[Tensor, " batch"]:
    """Return −log p(y) = log Σ_y' exp(score(y')) − score(y), in nats (survey of 2003, section 4.2).

    Args:
        energy: the energy of chains; gradients flow to the energy's tensors.
        labels: y, the true class indices; values beyond a chain's end are ignored.

    Raises:
        ValueError: a label inside a chain is no state; :func:`chain_dp.log_partition` refuses the energy.

    Examples:
        >>> import torch
        >>> from lmbm_torch import ChainEnergy
        >>> from lmbm_torch.losses import chain_negative_log_likelihood
        >>> energy = ChainEnergy(torch.zeros(1, 3, 2), torch.zeros(2, 2))
        >>> chain_negative_log_likelihood(energy, torch.tensor([[0, 1, 1]]))  # log 8
        tensor([2.0794])
    """
    return chain_dp.log_partition(energy) - energy.score(labels)


@one_door
def chain_structured_hinge(
    energy: ChainEnergy, labels: Int[Tensor, "batch length"], *, slope: float = 1.0
) -> Float[Tensor, " batch"]:
    """Return max_y [slope · Σ_t [y_t ≠ truth_t] + score(y)] − score(truth), by Viterbi's algorithm.

    This is Equation 37 of max_margin_markov_networks_survey_2003.

    Args:
        energy: the energy of chains; gradients flow to the energy's tensors, but not through the maximum.
        labels: the true class indices; values beyond a chain's end are ignored.
        slope: > 0, the cost of each wrong label.

    Raises:
        ValueError: a label inside a chain is no state; the slope is not a finite number above 0;
            :func:`chain_dp.decode` refuses the energy.

    Examples:
        >>> import torch
        >>> from lmbm_torch import ChainEnergy
        >>> from lmbm_torch.losses import chain_structured_hinge
        >>> energy = ChainEnergy(torch.zeros(1, 3, 2), torch.zeros(2, 2))
        >>> chain_structured_hinge(energy, torch.tensor([[0, 1, 1]]))
        tensor([3.])
    """
    check_positive("slope", slope)
    own = energy.score(labels)
    # Clamp labels for safe indexing: ``score`` refuses labels out of range, but on a GPU perhaps only later.
    states = labels.where(energy.inside, 0).clamp(0, energy.num_states - 1)
    # Compare with all states: torch's one_hot would read the labels, and so wait for the GPU.
    wrong = states[..., None] != torch.arange(energy.num_states, device=states.device)
    augmented = energy.add_unary(slope * wrong.to(energy.dtype))
    return augmented.score(chain_dp.decode(augmented).labels) - own
