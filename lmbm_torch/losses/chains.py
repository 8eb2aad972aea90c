"""Losses of chains for training by gradients: the log loss and the structured hinge."""

from __future__ import annotations

import torch
from torch import Tensor

from lmbm_torch.checks import check_positive
from lmbm_torch.energies.chain import ChainEnergy
from lmbm_torch.inference.trees import chain_dp
from lmbm_torch.shapes import Float, Int
from lmbm_torch.verdicts import one_door


@one_door
def chain_negative_log_likelihood(
    energy: ChainEnergy, labels: Int[Tensor, "batch length"]
) -> Float[Tensor, " batch"]:
    """Return −log p(y) = log Σ_y' exp(score(y')) − score(y), in nats (survey of 2003, section 4.2).

    Args:
        energy: gradients flow to the energy's tensors.
        labels: y, class indices; values beyond a chain's end are ignored.

    Raises:
        ValueError: a label inside a chain is no state; an energy that :func:`chain_dp.log_partition` refuses.

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

    max_margin_markov_networks_survey_2003, Equation 37.

    Args:
        energy: gradients flow to the energy's tensors, but not through the maximisation.
        labels: the truth, class indices; values beyond a chain's end are ignored.
        slope: > 0, the cost of each wrong label.

    Raises:
        ValueError: a label inside a chain is no state; a slope that is not a finite number above 0; an energy
            that :func:`chain_dp.decode` refuses.

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
    # Labels out of range were refused by ``score``, on a GPU at the latest when the CPU reads a result.
    states = labels.where(energy.inside, 0).clamp(0, energy.num_states - 1)
    # Not torch's one_hot, which reads the states and so waits for the GPU.
    wrong = states[..., None] != torch.arange(energy.num_states, device=states.device)
    augmented = energy.add_unary(slope * wrong.to(energy.dtype))
    return augmented.score(chain_dp.decode(augmented).labels) - own
