"""Gradients of the losses of restricted Boltzmann machines in closed form, for those who take steps by hand.

Every loss of :mod:`~lmbm_torch.losses.latent` and :mod:`~lmbm_torch.losses.contrastive` compares the observed
labels v with what the model would rather have, v⁻: beliefs, a chain's state or the worst labelling. Its
gradient in the energy's tensors is v⁻ − v for the visible units, h⁻ − h for the hidden ones and
v⁻ h⁻ᵀ − v hᵀ for their couplings, with h = P(h = 1 | v) or, for the joint hinge, the best h. So a step takes
no graph of autograd, and waits for no device within :func:`~lmbm_torch.verdicts.supposing`.

The labels must be complete.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lmbm_torch.checks import check_count
from lmbm_torch.energies.bipartite import BipartiteEnergy
from lmbm_torch.inference.messages import matrix_bp, mean_field
from lmbm_torch.inference.sampling.gibbs import draw
from lmbm_torch.losses.structured import loss_augment
from lmbm_torch.shapes import Bool, Float, Shaped
from lmbm_torch.verdicts import one_door

__all__ = ["EnergyGradient", "gradient"]

Settings = dict[str, Any]


class EnergyGradient(NamedTuple):
    """The gradient of the sum of a batch's losses.

    Args:
        visible: in the visible units' log-potentials of each example.
        hidden: in those of the hidden units.
        coupling: in the couplings, summed over the batch.
        converged: whether inference did, for each example; None for a chain.
        reached: the state of each example's chain, {0, 1}, in the labels' dtype; None without one.
        beliefs: P(h = 1) beside v⁻, where the next inference for these examples may start; None for a chain.
    """

    visible: Float[Tensor, "batch visible"]
    hidden: Float[Tensor, "batch hidden"]
    coupling: Float[Tensor, "visible hidden"]
    converged: Bool[Tensor, " batch"] | None = None
    reached: Float[Tensor, "batch visible"] | None = None
    beliefs: Float[Tensor, "batch hidden"] | None = None


@one_door
@torch.no_grad()
def gradient(
    method: str,
    energy: BipartiteEnergy,
    labels: Float[Tensor, "batch visible"],
    *,
    num_iters: int = 10,
    tol: float = 1e-3,
    num_steps: int = 1,
    chains: Shaped[Tensor, "batch visible"] | None = None,
    init: Float[Tensor, "batch hidden"] | None = None,
) -> EnergyGradient:
    """Return the gradient of Σ_b loss_b in the energy's tensors.

    Args:
        method: one of :data:`~lmbm_torch.losses.latent.METHODS`.
        energy: a bipartite energy, on any device.
        labels: v, {0, 1}.
        num_iters, tol: of inference, for methods that infer.
        num_steps: of Gibbs sampling, for methods that sample.
        chains: {0, 1}, where persistent chains start.
        init: ``beliefs`` to start inference from; by default it starts from nothing.

    Raises:
        ValueError: no such method; persistent chains that are missing; what the method's inference refuses.
    """
    if method in _BY_SAMPLING:
        return _BY_SAMPLING[method](energy, labels, num_steps, chains)
    if method not in _BY_INFERENCE:
        raise ValueError(f"method: expected one of {[*_BY_INFERENCE, *_BY_SAMPLING]}, got {method!r}")
    return _BY_INFERENCE[method](energy, labels, init, {"num_iters": num_iters, "tol": tol})


def _propagation(
    energy: BipartiteEnergy, labels: Tensor, init: Tensor | None, settings: Settings
) -> EnergyGradient:
    found, pairs = matrix_bp.moments(energy, init=init, **settings)
    hidden = energy.hidden_given_visible(labels)
    return EnergyGradient(
        found.visible - labels,
        found.hidden - hidden,
        torch.addmm(pairs, labels.mT, hidden, alpha=-1),
        found.status.converged,
        beliefs=found.hidden,
    )


def _mean_field(
    energy: BipartiteEnergy, labels: Tensor, init: Tensor | None, settings: Settings
) -> EnergyGradient:
    start = None if init is None else energy.visible_given_hidden(init)
    found = mean_field.marginals(energy, init=start, **settings)
    observed = energy.hidden_given_visible(labels)
    return _difference((found.visible, found.hidden), (labels, observed))._replace(
        converged=found.status.converged, beliefs=found.hidden
    )


def _joint_hinge(
    energy: BipartiteEnergy, labels: Tensor, init: Tensor | None, settings: Settings
) -> EnergyGradient:
    found = matrix_bp.max_marginals(loss_augment(energy, labels), init=init, **settings)
    worst = (found.visible > 0.5).to(labels.dtype)
    # Both sides with their best hidden units.
    best, observed = ((energy.hidden_fields(v) > 0).to(labels.dtype) for v in (worst, labels))
    return _difference((worst, best), (labels, observed))._replace(
        converged=found.status.converged, beliefs=found.hidden
    )


def _marginal_hinge(
    energy: BipartiteEnergy, labels: Tensor, init: Tensor | None, settings: Settings
) -> EnergyGradient:
    found = matrix_bp.marginal_map(loss_augment(energy, labels), init=init, **settings)
    worst = found.labels.to(labels.dtype)
    hidden = energy.hidden_given_visible(worst)
    return _difference((worst, hidden), (labels, energy.hidden_given_visible(labels)))._replace(
        converged=found.status.converged, beliefs=hidden
    )


def _chain(energy: BipartiteEnergy, labels: Tensor, num_steps: int, chains: Tensor | None) -> EnergyGradient:
    """Return the gradient of contrastive divergence, whose chains start at the labels."""
    return _from(energy, labels, _walk(energy, labels, num_steps)[0])


def _persistent_chain(
    energy: BipartiteEnergy, labels: Tensor, num_steps: int, chains: Tensor | None
) -> EnergyGradient:
    if chains is None:
        raise ValueError("chains: expected where persistent chains start, got None")
    return _from(energy, labels, _walk(energy, chains.to(labels.dtype), num_steps)[0])


def _perceptron(
    energy: BipartiteEnergy, labels: Tensor, num_steps: int, chains: Tensor | None
) -> EnergyGradient:
    hidden = _walk(energy, draw(torch.sigmoid(energy.visible)), num_steps)[1]
    reached = (energy.visible_fields(hidden) > 0).to(labels.dtype)
    # Where the chain found nothing better there is no loss.
    gained = energy.free_energy(labels) - energy.free_energy(reached) > 0
    return _from(energy, labels, reached, gained[:, None].to(labels.dtype))


def _walk(energy: BipartiteEnergy, visible: Tensor, num_steps: int) -> tuple[Tensor, Tensor]:
    """Return the visible and the hidden units after some steps of
    :func:`~lmbm_torch.inference.sampling.gibbs.sample` from there."""
    energy.check_values()
    check_count("num_steps", num_steps)
    hidden = energy.hidden
    for _ in range(num_steps):
        hidden = draw(torch.addmm(energy.hidden, visible, energy.coupling).sigmoid_())
        visible = draw(torch.addmm(energy.visible, hidden, energy.coupling.mT).sigmoid_())
    return visible, hidden


def _from(
    energy: BipartiteEnergy, labels: Tensor, reached: Tensor, weights: Tensor | None = None
) -> EnergyGradient:
    """Return with the chain's state in the place of v⁻."""
    return _difference(
        (reached, energy.hidden_given_visible(reached)),
        (labels, energy.hidden_given_visible(labels)),
        weights,
    )._replace(reached=reached)


def _difference(
    expected: tuple[Tensor, Tensor], observed: tuple[Tensor, Tensor], weights: Tensor | None = None
) -> EnergyGradient:
    """Return the difference of statistics of states (visible, hidden), weighted by ``(batch, 1)``."""
    if weights is not None:
        # One side of a product suffices.
        by_visible = weights * (expected[0] - observed[0])
        expected, observed = ((visible, weights * hidden) for visible, hidden in (expected, observed))
    else:
        by_visible = expected[0] - observed[0]
    pairs = torch.addmm(expected[0].mT @ expected[1], observed[0].mT, observed[1], alpha=-1)
    return EnergyGradient(by_visible, expected[1] - observed[1], pairs)


_BY_INFERENCE: dict[str, Callable[[BipartiteEnergy, Tensor, Tensor | None, Settings], EnergyGradient]] = {
    "mle_bp": _propagation,
    "mle_mf": _mean_field,
    "lssvm": _joint_hinge,
    "mssvm": _marginal_hinge,
}
_BY_SAMPLING: dict[str, Callable[[BipartiteEnergy, Tensor, int, Tensor | None], EnergyGradient]] = {
    "cd": _chain,
    "pcd": _persistent_chain,
    "cd_percloss": _perceptron,
}
