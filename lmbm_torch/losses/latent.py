"""Learning restricted Boltzmann machines with deterministic inference: likelihoods and structured hinges.

Source: belief_propagation_in_crbms_2017, section 4 and Appendix A. F is the free energy, the hidden units
summed out; a decoder's labels and a product distribution's means are taken as they are, so that gradients are
the paper's.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from lmbm_torch.energies.bipartite import BipartiteEnergy
from lmbm_torch.inference import matrix_bp, mean_field
from lmbm_torch.inference.results import BipartiteMarginals, Decoding
from lmbm_torch.losses.missing import any_missing
from lmbm_torch.losses.structured import loss_augment
from lmbm_torch.shapes import Float, Shaped

__all__ = [
    "bethe_negative_log_likelihood",
    "joint_structured_hinge",
    "marginal_structured_hinge",
    "mean_field_negative_log_likelihood",
]


def bethe_negative_log_likelihood(
    energy: BipartiteEnergy,
    labels: Shaped[Tensor, "batch visible"],
    *,
    marginals: Callable[..., BipartiteMarginals] = matrix_bp.marginals,
) -> Float[Tensor, " batch"]:
    """F(v) + log Z by Bethe's approximation: −log P(v), exact where the coupling is a forest.

    Args:
        energy: a bipartite energy; gradients flow to its tensors.
        labels: v, {0, 1}, or NaN for a missing label, which is summed out like a hidden unit, by the same
            approximation.
        marginals: :func:`~lmbm_torch.inference.matrix_bp.marginals` with its settings, or what answers like
            it with a differentiable ``log_partition``; called as ``marginals(energy)`` and, where labels are
            missing, ``marginals(energy, known=labels)``.

    Raises:
        ValueError: labels of another shape or with other values; NaN or infinity in the energy.
    """
    missing = any_missing(energy, labels)
    log_partition = marginals(energy).log_partition
    if missing:
        return log_partition - marginals(energy, known=labels).log_partition
    return log_partition + energy.free_energy(labels)


def mean_field_negative_log_likelihood(
    energy: BipartiteEnergy,
    labels: Shaped[Tensor, "batch visible"],
    *,
    marginals: Callable[..., BipartiteMarginals] = mean_field.marginals,
) -> Float[Tensor, " batch"]:
    """F(v) + the mean-field bound on log Z: at most −log P(v), so what it minimises is no bound.

    At q, the visible units' means, the bound is −F(q) + entropy(q), and its gradient that of −F(q).

    Args:
        energy: a bipartite energy; gradients flow to its tensors, but not through the iterations.
        labels: v, {0, 1}, or NaN for a missing label: it is part of a product distribution of its own.
        marginals: :func:`~lmbm_torch.inference.mean_field.marginals` with its settings; called as for
            :func:`bethe_negative_log_likelihood`.

    Raises:
        ValueError: labels of another shape or with other values; NaN or infinity in the energy.
    """
    missing = any_missing(energy, labels)
    log_partition = _at_means(energy, marginals(energy))
    if missing:
        return log_partition - _at_means(energy, marginals(energy, known=labels))
    return log_partition + energy.free_energy(labels)


def joint_structured_hinge(
    energy: BipartiteEnergy,
    labels: Shaped[Tensor, "batch visible"],
    *,
    slope: float = 1.0,
    max_marginals: Callable[[BipartiteEnergy], BipartiteMarginals] = matrix_bp.max_marginals,
) -> Float[Tensor, " batch"]:
    """max_{v̂,h} [slope · Σ_i [v̂_i ≠ v_i] + score(v̂, h)] − max_h score(v, h): the latent structural SVM.

    v̂ has 1 where its max-marginal is above ½; given v̂ the best h has a closed form.

    Args:
        energy: a bipartite energy; gradients flow to its tensors, but not through the maximisation.
        labels: v, {0, 1}.
        slope: > 0, what each wrong label costs.
        max_marginals: :func:`~lmbm_torch.inference.matrix_bp.max_marginals` with its settings, or what
            answers like it. Where it falls short of the maximum, so does the loss, and may be negative.

    Raises:
        ValueError: labels of another shape or with other values; NaN or infinity in the energy; a slope that
            is not a finite number above 0.
    """
    augmented = loss_augment(energy, labels, slope)
    worst = (max_marginals(augmented).visible > 0.5).long()
    return _best_score(augmented, worst) - _best_score(augmented, labels)


def marginal_structured_hinge(
    energy: BipartiteEnergy,
    labels: Shaped[Tensor, "batch visible"],
    *,
    slope: float = 1.0,
    decoder: Callable[[BipartiteEnergy], Decoding] = matrix_bp.marginal_map,
) -> Float[Tensor, " batch"]:
    """max_{v̂} [slope · Σ_i [v̂_i ≠ v_i] − F(v̂)] + F(v): the marginal structural SVM (Equations 6 and 7).

    Args:
        energy: as for :func:`joint_structured_hinge`, like ``labels`` and ``slope``.
        decoder: :func:`~lmbm_torch.inference.matrix_bp.marginal_map` with its settings, or another decoder of
            the labelling of least free energy. Where it falls short, so does the loss, and may be negative.

    Raises:
        ValueError: as :func:`joint_structured_hinge`.
    """
    augmented = loss_augment(energy, labels, slope)
    worst = decoder(augmented).labels
    return augmented.free_energy(labels) - augmented.free_energy(worst)


def _at_means(energy: BipartiteEnergy, found: BipartiteMarginals) -> Tensor:
    """The bound that was found, with the gradient that it has at its means."""
    negative_free_energy = -energy.free_energy(found.visible)
    return negative_free_energy + (found.log_partition - negative_free_energy).detach()


def _best_score(energy: BipartiteEnergy, labels: Tensor) -> Tensor:
    """max_h score(v, h)."""
    visible = labels.to(energy.dtype)
    return (visible * energy.visible).sum(-1) + energy.hidden_fields(visible).clamp_min(0).sum(-1)
