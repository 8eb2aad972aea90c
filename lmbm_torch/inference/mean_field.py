"""Naive mean field: the product distribution nearest to a restricted Boltzmann machine, by block ascent."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.special import entr

from lmbm_torch.checks import check_count, check_known, check_like, check_not_negative, check_shape
from lmbm_torch.energies.bipartite import BipartiteEnergy
from lmbm_torch.inference import ascent
from lmbm_torch.inference.known import check_agreement, clamp
from lmbm_torch.inference.results import BipartiteMarginals
from lmbm_torch.shapes import Float, Shaped

__all__ = ["marginals"]


@torch.no_grad()
def marginals(
    energy: BipartiteEnergy,
    *,
    num_iters: int = 50,
    tol: float = 1e-6,
    init: Float[Tensor, "batch visible"] | None = None,
    known: Shaped[Tensor, "batch visible"] | None = None,
) -> BipartiteMarginals:
    """Marginals of the product Π_i q_i(v_i) Π_j r_j(h_j) that maximises E[score] + entropy ≤ log Z.

    Each iteration maximises over r, then over q: r = σ(hidden + qᵀ coupling), q = σ(visible + coupling r), so
    that the bound, which ``log_partition`` is, never falls. Where it ends depends on where it starts; it is
    exact where nothing is coupled. Joint marginals are the products of the single ones.

    Args:
        energy: a bipartite energy, on any device.
        num_iters: iterations at most.
        tol: an example has converged once an iteration changes no q_i by more.
        init: the q to start from, in [0, 1]; by default σ(visible), as if nothing were coupled.
        known: {0, 1, NaN}, NaN for a free visible unit; the bound is then on the log partition given these.

    Returns:
        Marginals with ``status.exact`` false, and in ``status.residual`` the last change of q.

    Raises:
        ValueError: NaN or infinity in the energy; ``num_iters`` below 1; a negative ``tol``; ``known`` of
            another shape or with other values; ``init`` of another shape or dtype, outside [0, 1], or against
            what is known.
    """
    energy.check_values()
    check_count("num_iters", num_iters)
    check_not_negative("tol", tol)
    check_known(known, energy.device, *energy.visible.shape)
    if init is None:
        start = clamp(torch.sigmoid(energy.visible), known)
    else:
        _check_init(init, energy, known)
        start = init

    def update(visible: Tensor) -> Tensor:
        hidden = energy.hidden_given_visible(visible)
        return clamp(energy.visible_given_hidden(hidden), known)

    visible, status = ascent.repeat(update, start, num_iters=num_iters, tol=tol)
    hidden = energy.hidden_given_visible(visible)
    # The best r has been put in: what remains of the bound is the entropy of q and a free energy.
    entropy = (entr(visible) + entr(1 - visible)).sum(-1)
    return BipartiteMarginals(visible, hidden, entropy - energy.free_energy(visible), status)


def _check_init(init: Tensor, energy: BipartiteEnergy, known: Tensor | None) -> None:
    check_shape("init", init, *energy.visible.shape)
    check_like("init", init, "visible", energy.visible)
    if not bool(((init >= 0) & (init <= 1)).all()):
        raise ValueError("init: expected probabilities in [0, 1], got others")
    check_agreement(init, known)
