"""Losses of restricted Boltzmann machines by deterministic inference: likelihoods and structured hinges.

Source: belief_propagation_in_crbms_2017, section 4 and Appendix A. F is the free energy, with hidden units
summed out. Gradients do not flow through decoded labels or mean-field means, as in the paper.

Every loss of a model with hidden units can be called as ``loss(energy, labels, inference=…)``, as
:class:`~lmbm_torch.training.latent.LatentModule` does.

``METHODS`` lists the paper's methods for training conditional RBMs, each a loss and an inference routine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from lmbm_torch.checks import check_positive
from lmbm_torch.energies.bipartite import BipartiteEnergy
from lmbm_torch.energies.first_order import first_order
from lmbm_torch.inference.common.results import BipartiteMarginals, Decoding
from lmbm_torch.inference.messages import matrix_bp, mean_field
from lmbm_torch.inference.messages.matching import Routine
from lmbm_torch.losses import contrastive, latent
from lmbm_torch.losses.missing import any_missing, check_observed
from lmbm_torch.losses.structured import loss_augment
from lmbm_torch.shapes import Float, Shaped
from lmbm_torch.verdicts import one_door


@one_door
def bethe_negative_log_likelihood(
    energy: BipartiteEnergy,
    labels: Shaped[Tensor, "batch visible"],
    *,
    inference: Callable[..., BipartiteMarginals] = matrix_bp.marginals,
) -> Float[Tensor, " batch"]:
    """Return −log P(v) = F(v) + log Z with Bethe's approximation of log Z, exact if the graph is a forest.

    Args:
        energy: a bipartite energy; gradients flow to the energy's tensors.
        labels: v, {0, 1}, or NaN for a missing label, which is summed out by the same approximation.
        inference: :func:`~lmbm_torch.inference.messages.matrix_bp.marginals` with its settings, or another
            routine with a differentiable ``log_partition``. Called as ``inference(energy)`` and, if labels
            are missing, then as ``inference(energy, known=labels)``.

    Raises:
        ValueError: ``labels`` have another shape or other values than described above; the energy contains
            NaN or infinity; a gradient is needed, but the routine has none.

    Examples:
        >>> import torch
        >>> from lmbm_torch import BipartiteEnergy
        >>> from lmbm_torch.losses import bethe_negative_log_likelihood
        >>> energy = BipartiteEnergy(torch.zeros(1, 2), torch.zeros(1, 1), torch.zeros(2, 1))
        >>> bethe_negative_log_likelihood(energy, torch.ones(1, 2))  # log 4
        tensor([1.3863])
    """
    tensors = energy.visible, energy.hidden, energy.coupling
    needs_gradient = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)

    def log_partition(**given: Tensor) -> Tensor:
        found = inference(energy, **given).log_partition
        if needs_gradient and not found.requires_grad:
            raise ValueError(
                "inference: expected a routine whose log_partition has a gradient, got one without a gradient"
            )
        return found

    return _negative_log_likelihood(energy, labels, log_partition)


@one_door
def mean_field_negative_log_likelihood(
    energy: BipartiteEnergy,
    labels: Shaped[Tensor, "batch visible"],
    *,
    inference: Callable[..., BipartiteMarginals] = mean_field.marginals,
) -> Float[Tensor, " batch"]:
    """Return a lower bound of −log P(v) = F(v) + log Z: F(v) plus the mean-field lower bound on log Z.

    The mean-field bound is −F(q) + entropy(q), where F is the free energy, and q the visible units' means.
    The gradient of the bound is the gradient of −F(q) with q held constant.

    Args:
        energy: a bipartite energy; gradients flow to the energy's tensors, but not through the iterations.
        labels: v, {0, 1}, or NaN for missing labels; then a second mean-field bound, given v, replaces −F(v).
        inference: :func:`~lmbm_torch.inference.messages.mean_field.marginals` with its settings, called as in
            :func:`bethe_negative_log_likelihood`.

    Raises:
        ValueError: ``labels`` have another shape or other values than described above; the energy contains
            NaN or infinity.

    Examples:
        >>> import torch
        >>> from lmbm_torch import BipartiteEnergy
        >>> from lmbm_torch.losses import mean_field_negative_log_likelihood
        >>> energy = BipartiteEnergy(torch.zeros(1, 2), torch.zeros(1, 1), torch.zeros(2, 1))
        >>> mean_field_negative_log_likelihood(energy, torch.ones(1, 2))
        tensor([1.3863])
    """
    return _negative_log_likelihood(
        energy, labels, lambda **given: _at_means(energy, inference(energy, **given))
    )


@one_door
def joint_structured_hinge(
    energy: BipartiteEnergy,
    labels: Shaped[Tensor, "batch visible"],
    *,
    slope: float = 1.0,
    inference: Callable[..., BipartiteMarginals | Decoding] = matrix_bp.max_marginals,
) -> Float[Tensor, " batch"]:
    """Return max_{v̂,h} [slope · Σ_i [v̂_i ≠ v_i] + score(v̂, h)] − max_h score(v, h).

    This is the loss of the latent structural SVM; h are the hidden units. v̂_i is 1 if the max-marginal of
    label i is above ½; with a decoder, v̂ is the decoded labelling. Given v̂, the best h has a closed form.

    Args:
        energy: a bipartite energy; gradients flow to the energy's tensors, but not through the maximisation.
        labels: v, {0, 1}, or NaN for a missing label, which costs nothing if wrong; as the truth, it has the
            value that the model prefers given the observed labels (latent completion).
        slope: > 0, the cost of each wrong label.
        inference: :func:`~lmbm_torch.inference.messages.matrix_bp.max_marginals` with its settings, another
            routine for max-marginals, or a decoder of the best (v̂, h) such as the greedy search of section
            2, :func:`~lmbm_torch.inference.messages.conditional_modes.decode`; called as in
            :func:`bethe_negative_log_likelihood`. If the routine misses the maximum, the loss is too small
            and may be negative.

    Raises:
        ValueError: ``labels`` have another shape or other values than described above; the energy contains
            NaN or infinity; the slope is not a finite number above 0.

    Examples:
        >>> import torch
        >>> from lmbm_torch import BipartiteEnergy
        >>> from lmbm_torch.losses import joint_structured_hinge
        >>> energy = BipartiteEnergy(torch.full((1, 2), 3.0), torch.zeros(1, 1), torch.zeros(2, 1))
        >>> joint_structured_hinge(energy, torch.zeros(1, 2))
        tensor([8.])
    """

    def best(energy: BipartiteEnergy, **given: Tensor) -> Tensor:
        return (inference(energy, **given).labels > 0.5).long()

    augmented, complete = _augmented(energy, labels, slope, best)
    return _best_score(augmented, best(augmented)) - _best_score(augmented, complete)


@one_door
def marginal_structured_hinge(
    energy: BipartiteEnergy,
    labels: Shaped[Tensor, "batch visible"],
    *,
    slope: float = 1.0,
    inference: Callable[..., Decoding] = matrix_bp.marginal_map,
) -> Float[Tensor, " batch"]:
    """Return the loss of the marginal structural SVM, max_{v̂} [slope · Σ_i [v̂_i ≠ v_i] − F(v̂)] + F(v).

    F is the free energy: hidden units are summed out (Equations 6 and 7).

    Args:
        energy, labels, slope: as in :func:`joint_structured_hinge`.
        inference: :func:`~lmbm_torch.inference.messages.matrix_bp.marginal_map` with its settings, or another
            decoder of the labelling of least free energy, such as
            :func:`~lmbm_torch.inference.messages.conditional_modes.marginal_map` or
            :func:`~lmbm_torch.inference.messages.dual_decomposition.marginal_map`; called as in
            :func:`bethe_negative_log_likelihood`. If the routine misses the minimum, the loss is too small
            and may be negative.

    Raises:
        ValueError: as :func:`joint_structured_hinge`.

    Examples:
        >>> import torch
        >>> from lmbm_torch import BipartiteEnergy
        >>> from lmbm_torch.losses import marginal_structured_hinge
        >>> energy = BipartiteEnergy(torch.full((1, 2), 3.0), torch.zeros(1, 1), torch.zeros(2, 1))
        >>> marginal_structured_hinge(energy, torch.zeros(1, 2))
        tensor([8.])
    """

    def best(energy: BipartiteEnergy, **given: Tensor) -> Tensor:
        return inference(energy, **given).labels

    augmented, complete = _augmented(energy, labels, slope, best)
    return augmented.free_energy(complete) - augmented.free_energy(best(augmented))


def _augmented(
    energy: BipartiteEnergy, labels: Tensor, slope: float, best: Callable[..., Tensor]
) -> tuple[BipartiteEnergy, Tensor]:
    """Return the loss-augmented energy, and the labels with missing labels completed by ``best``."""
    check_positive("slope", slope)
    if not any_missing(energy, labels):
        return loss_augment(energy, labels, slope), labels
    costs = slope * (1 - 2 * labels.to(energy.dtype))
    return energy.add_unary(costs.nan_to_num(0.0)), best(energy, known=labels)


def _negative_log_likelihood(
    energy: BipartiteEnergy, labels: Tensor, log_partition: Callable[..., Tensor]
) -> Tensor:
    """Return F(v) + log Z or, if labels are missing, log Z − log Z(observed labels)."""
    check_observed(energy, labels)
    # Compute this term before asking for missing labels, so that the CPU waits for the GPU only once.
    whole = log_partition()
    if any_missing(energy, labels):
        return whole - log_partition(known=labels)
    return whole + energy.free_energy(labels)


def _at_means(energy: BipartiteEnergy, found: BipartiteMarginals) -> Tensor:
    """Return the mean-field bound, whose gradient is the gradient of −F with the means held constant."""
    learnt = first_order(energy, "mean_field_negative_log_likelihood")
    negative_free_energy = -learnt.free_energy(found.visible)
    return negative_free_energy + (found.log_partition - negative_free_energy).detach()


def _best_score(energy: BipartiteEnergy, labels: Tensor) -> Tensor:
    """Return the largest score of the labels over hidden units, max_h score(v, h)."""
    visible = labels.to(energy.dtype)
    return (visible * energy.visible).sum(-1) + energy.hidden_fields(visible).clamp_min(0).sum(-1)


@dataclass(frozen=True)
class Method:
    """A training method: a loss, and the inference routine for training and prediction.

    Args:
        loss: function called as ``loss(energy, labels, inference=…)``; for persistent contrastive divergence,
            also with the states of the Markov chains.
        routine: the routine for :class:`~lmbm_torch.inference.messages.matching.MatchedInference`; with a
            sampling loss, only prediction uses the routine.
        num_steps: the default number of steps of Gibbs sampling; None for a loss without sampling.
    """

    loss: Callable[..., Tensor] | Callable[..., tuple[Tensor, Tensor]]
    routine: Routine
    num_steps: int | None = None


METHODS: Mapping[str, Method] = MappingProxyType(
    {
        "mle_bp": Method(latent.bethe_negative_log_likelihood, matrix_bp.marginals),
        "mle_mf": Method(latent.mean_field_negative_log_likelihood, mean_field.marginals),
        "lssvm": Method(latent.joint_structured_hinge, matrix_bp.max_marginals),
        "mssvm": Method(latent.marginal_structured_hinge, matrix_bp.marginal_map),
        "cd": Method(contrastive.contrastive_divergence, mean_field.marginals, num_steps=1),
        "pcd": Method(contrastive.persistent_contrastive_divergence, mean_field.marginals, num_steps=10),
        "cd_percloss": Method(contrastive.contrastive_perceptron, mean_field.marginals, 10),
    }
)
"""The methods by the names of the paper: maximum likelihood by belief propagation and by mean field, the
latent and the marginal structural SVM, contrastive divergence, persistent contrastive divergence and
CD-PercLoss."""
