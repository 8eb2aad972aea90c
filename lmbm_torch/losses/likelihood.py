"""Log losses: of belief networks in closed form, of small models by enumeration; pseudo-likelihood."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import logsigmoid, softplus

from lmbm_torch.energies.base import Energy
from lmbm_torch.energies.clique import CliqueEnergy
from lmbm_torch.energies.directed import DirectedEnergy
from lmbm_torch.energies.pairwise import PairwiseEnergy
from lmbm_torch.inference.enumeration import exact
from lmbm_torch.losses.missing import are_unreadable, check_complete, impute
from lmbm_torch.shapes import Float, Shaped
from lmbm_torch.verdicts import one_door


@one_door
def negative_log_likelihood(
    energy: DirectedEnergy, labels: Shaped[Tensor, "batch labels"]
) -> Float[Tensor, " batch"]:
    """Return −log P(y) = Σ_i log(1 + exp(−2 m_i)), with m_i the local margin of label i, in nats.

    Args:
        energy: a belief network; gradients flow to the energy's tensors.
        labels: {0, 1}, or NaN for a missing label, whose own term is left out; as a parent of other labels, a
            missing label has the model's greedy prediction (:func:`lmbm_torch.losses.missing.impute`). The
            loss is not the likelihood of the observed labels: see :func:`exact_negative_log_likelihood`.

    Raises:
        ValueError: ``labels`` have another shape or other values than described above; the energy contains
            NaN, infinity or a misplaced parent.

    Examples:
        >>> import torch
        >>> from lmbm_torch import DirectedEnergy
        >>> from lmbm_torch.losses import negative_log_likelihood
        >>> energy = DirectedEnergy(torch.zeros(1, 2), torch.zeros(2, 2), torch.arange(2))
        >>> negative_log_likelihood(energy, torch.tensor([[1, 0]]))  # log 4
        tensor([1.3863])
    """
    complete, observed = impute(energy, labels)
    loss = softplus(-2 * energy.local_margins(complete))
    return (loss * observed).sum(-1)


@one_door
def exact_negative_log_likelihood(
    energy: Energy, labels: Shaped[Tensor, "batch labels"]
) -> Float[Tensor, " batch"]:
    """Return −log P(observed labels) = log Σ_y exp(score(y)) − log Σ_y' exp(score(y')), in nats.

    The first sum is over all labellings y, the second over the labellings y' that agree with the observed
    labels. Both sums are enumerated, so labels must be few.

    Args:
        energy: any energy over binary labels; gradients flow to the energy's tensors. Labels of a bipartite
            energy are the visible units; hidden units are summed out.
        labels: {0, 1}, or NaN for a missing label, which is summed out.

    Raises:
        ValueError: ``labels`` have another shape or other values than described above; the energy contains
            NaN or infinity; there are more than 2^22 labellings (in a bipartite energy: labellings of the
            smaller side).

    Examples:
        >>> import torch
        >>> from lmbm_torch import PairwiseEnergy
        >>> from lmbm_torch.losses import exact_negative_log_likelihood
        >>> energy = PairwiseEnergy(torch.zeros(1, 3), torch.zeros(3, 3))
        >>> exact_negative_log_likelihood(energy, torch.tensor([[1, 0, float("nan")]]))  # log 4
        tensor([1.3863])
    """
    return exact.log_partition(energy) - exact.log_partition(energy, known=labels)


@one_door
def negative_pseudo_likelihood(
    energy: PairwiseEnergy | CliqueEnergy, labels: Shaped[Tensor, "batch labels"]
) -> Float[Tensor, " batch"]:
    """Return −Σ_i log P(y_i | all other labels) = Σ_i log(1 + exp(−2 m_i)), in nats, with local margins m_i.

    Args:
        energy: a Boltzmann machine; gradients flow to the energy's tensors. (The margins of a belief network
            leave out the children: for a belief network the same sum is −log P(y).)
        labels: {0, 1}.

    Raises:
        ValueError: ``labels`` have another shape or other values than described above; the energy contains
            NaN or infinity, or has asymmetric couplings.

    Examples:
        >>> import torch
        >>> from lmbm_torch import PairwiseEnergy
        >>> from lmbm_torch.losses import negative_pseudo_likelihood
        >>> negative_pseudo_likelihood(PairwiseEnergy(torch.zeros(1, 2), torch.zeros(2, 2)), torch.ones(1, 2))
        tensor([1.3863])
    """
    if not are_unreadable(energy, labels):
        energy.check_values()
        check_complete(energy, labels)
    return -logsigmoid(2 * energy.local_margins(labels)).sum(-1)
