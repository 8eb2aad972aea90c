"""Naive mean field: the product distribution nearest to a Boltzmann machine, by block ascent."""

from __future__ import annotations

from collections.abc import Callable
from typing import overload

import torch
from torch import Tensor
from torch.special import entr

from lmbm_torch.checks import check_count, check_known, check_like, check_not_negative, check_shape
from lmbm_torch.energies.bipartite import BipartiteEnergy
from lmbm_torch.energies.pairwise import PairwiseEnergy
from lmbm_torch.inference.parts import ascent
from lmbm_torch.inference.parts.known import check_agreement, clamp
from lmbm_torch.inference.parts.label_blocks import uncoupled_blocks
from lmbm_torch.inference.results import BipartiteMarginals, Marginals
from lmbm_torch.shapes import Float, Shaped

__all__ = ["marginals"]


@overload
def marginals(
    energy: PairwiseEnergy,
    *,
    num_iters: int = 50,
    tol: float = 1e-6,
    init: Tensor | None = None,
    known: Tensor | None = None,
) -> Marginals: ...
@overload
def marginals(
    energy: BipartiteEnergy,
    *,
    num_iters: int = 50,
    tol: float = 1e-6,
    init: Tensor | None = None,
    known: Tensor | None = None,
) -> BipartiteMarginals: ...
@torch.no_grad()
def marginals(
    energy: PairwiseEnergy | BipartiteEnergy,
    *,
    num_iters: int = 50,
    tol: float = 1e-6,
    init: Float[Tensor, "batch labels"] | None = None,
    known: Shaped[Tensor, "batch labels"] | None = None,
) -> Marginals | BipartiteMarginals:
    """Marginals of the product Π_i q_i(y_i) that maximises E[score] + entropy ≤ log Z.

    Each iteration maximises over every q_i in turn, over those of labels that are not coupled at once:
    q_i = σ(2 unary_i + 2 Σ_j pairwise_ij (2 q_j − 1)) or, of a bipartite energy, r = σ(hidden + qᵀ coupling)
    for the hidden units, then q = σ(visible + coupling r). So the bound, which ``log_partition`` is, never
    falls. Where it ends depends on where it starts; it is exact where nothing is coupled. Joint marginals are
    the products of the single ones.

    Args:
        energy: a Boltzmann machine, restricted or not, on any device; the labels of a bipartite one are its
            visible units.
        num_iters: iterations at most.
        tol: an example has converged once an iteration changes no q_i by more.
        init: the q to start from, in [0, 1]; by default σ(2 unary) or σ(visible), as if nothing were coupled.
        known: {0, 1, NaN}, NaN for a free label; the bound is then on the log partition given the others.

    Returns:
        Marginals with ``status.exact`` false, and in ``status.residual`` the last change of q.

    Raises:
        ValueError: NaN or infinity in the energy, or couplings that are not symmetric; ``num_iters`` below 1;
            a negative ``tol``; ``known`` of another shape or with other values; ``init`` of another shape or
            dtype, outside [0, 1], or against what is known.
    """
    energy.check_values()
    check_count("num_iters", num_iters)
    check_not_negative("tol", tol)
    is_pairwise = isinstance(energy, PairwiseEnergy)
    uncoupled = torch.sigmoid(2 * energy.unary if is_pairwise else energy.visible)
    check_known(known, energy.device, *uncoupled.shape)
    if init is None:
        start = clamp(uncoupled, known)
    else:
        _check_init(init, uncoupled, known)
        start = init
    update = _pairwise_update(energy, known) if is_pairwise else _bipartite_update(energy, known)
    labels, status = ascent.repeat(update, start, num_iters=num_iters, tol=tol)
    entropy = (entr(labels) + entr(1 - labels)).sum(-1)
    if is_pairwise:
        # The score is linear in each label, so that its mean is that of the mean labels.
        return Marginals(labels, energy.score(labels) + entropy, status)
    # The best r has been put in: what remains of the bound is the entropy of q and a free energy.
    hidden = energy.hidden_given_visible(labels)
    return BipartiteMarginals(labels, hidden, entropy - energy.free_energy(labels), status)


def _pairwise_update(energy: PairwiseEnergy, known: Tensor | None) -> Callable[[Tensor], Tensor]:
    """Block after block, each with the last means of all others."""
    blocks = uncoupled_blocks(energy, known)

    def update(labels: Tensor) -> Tensor:
        labels = labels.clone()
        for block in blocks:
            labels[:, block.index] = block.expected(labels)
        return labels

    return update


def _bipartite_update(energy: BipartiteEnergy, known: Tensor | None) -> Callable[[Tensor], Tensor]:
    """The hidden side, then the visible one."""

    def update(visible: Tensor) -> Tensor:
        hidden = energy.hidden_given_visible(visible)
        return clamp(energy.visible_given_hidden(hidden), known)

    return update


def _check_init(init: Tensor, like: Tensor, known: Tensor | None) -> None:
    check_shape("init", init, *like.shape)
    check_like("init", init, "energy", like)
    if not bool(((init >= 0) & (init <= 1)).all()):
        raise ValueError("init: expected probabilities in [0, 1], got others")
    check_agreement(init, known)
