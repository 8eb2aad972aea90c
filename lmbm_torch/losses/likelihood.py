"""Log losses: in closed form, by enumeration, and the pseudo-likelihood."""

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
    """−log P(y) = Σ_i log(1 + exp(−2 m_i)), with m_i the local margin of label i, in nats.

    Args:
        energy: a directed model; gradients flow to its tensors.
        labels: {0, 1}, or NaN for a missing label: its own term is left out, and where it is a parent its
            value is the model's greedy prediction (:func:`lmbm_torch.losses.missing.impute`). This is not
            the marginal likelihood of the observed labels: for that see
            :func:`exact_negative_log_likelihood`.

    Raises:
        ValueError: labels of another shape or with other values; NaN, infinity or a misplaced parent in the
            energy.
    """
    complete, observed = impute(energy, labels)
    loss = softplus(-2 * energy.local_margins(complete))
    return (loss * observed).sum(-1)


@one_door
def exact_negative_log_likelihood(
    energy: Energy, labels: Shaped[Tensor, "batch labels"]
) -> Float[Tensor, " batch"]:
    """−log P(observed labels) = log Σ_y exp(score(y)) − log Σ_{y agrees} exp(score(y)), in nats.

    By enumeration, for few labels; of complete labels the second sum is their score.

    Args:
        energy: any energy over binary labels; gradients flow to its tensors. Labels of a bipartite energy are
            its visible units; its hidden units are summed out.
        labels: {0, 1}, or NaN for a missing label, which is summed out.

    Raises:
        ValueError: labels of another shape or with other values; NaN or infinity in the energy; more than
            2^22 labellings (of a bipartite energy: of its smaller side).
    """
    return exact.log_partition(energy) - exact.log_partition(energy, known=labels)


@one_door
def negative_pseudo_likelihood(
    energy: PairwiseEnergy | CliqueEnergy, labels: Shaped[Tensor, "batch labels"]
) -> Float[Tensor, " batch"]:
    """−Σ_i log P(y_i | all other labels) = Σ_i log(1 + exp(−2 m_i)), with m_i the local margin, in nats.

    Args:
        energy: a Boltzmann machine; gradients flow to its tensors. A directed model's margins leave out what
            children say about their parents, so that for it the same sum is the likelihood itself.
        labels: {0, 1}.

    Raises:
        ValueError: labels of another shape or with other values; NaN or infinity in the energy, or couplings
            that are not symmetric.
    """
    if not are_unreadable(energy, labels):
        energy.check_values()
        check_complete(energy, labels)
    return -logsigmoid(2 * energy.local_margins(labels)).sum(-1)
