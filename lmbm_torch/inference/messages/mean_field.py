"""Naive mean field: the product distribution closest to a Boltzmann machine, by coordinate ascent."""

from __future__ import annotations

from typing import TypedDict, Unpack, overload

import torch
from torch import Tensor
from torch.special import entr

from lmbm_torch.checks import (
    check_count,
    check_known,
    check_like,
    check_not_negative,
    check_probabilities,
    check_shape,
)
from lmbm_torch.energies import BipartiteEnergy, PairwiseEnergy
from lmbm_torch.inference.common import iterations as ascent
from lmbm_torch.inference.common.given import check_agreement, clamp
from lmbm_torch.inference.common.results import BipartiteMarginals, Marginals
from lmbm_torch.inference.sampling.gibbs import sweep, uncoupled
from lmbm_torch.shapes import Float, Known
from lmbm_torch.verdicts import one_door

__all__ = ["marginals"]


class _Options(TypedDict, total=False):
    num_iters: int
    tol: float
    init: Tensor | None
    known: Tensor | None


@overload
def marginals(energy: PairwiseEnergy, **options: Unpack[_Options]) -> Marginals: ...
@overload
def marginals(energy: BipartiteEnergy, **options: Unpack[_Options]) -> BipartiteMarginals: ...
@one_door
@torch.no_grad()
def marginals(
    energy: PairwiseEnergy | BipartiteEnergy,
    *,
    num_iters: int = 50,
    tol: float = 1e-6,
    init: Float[Tensor, "batch labels"] | None = None,
    known: Known | None = None,
) -> Marginals | BipartiteMarginals:
    """Return marginals of the product Π_i q_i(y_i) that maximises E[score] + entropy ≤ log Z.

    Each iteration maximises over every q_i in turn (over uncoupled labels at once): q_i = σ(2 unary_i +
    2 Σ_j pairwise_ij (2 q_j − 1)). For a bipartite energy, first r = σ(hidden + qᵀ coupling) for the hidden
    units, then q = σ(visible + coupling r). The bound ``log_partition`` never falls. The result depends on
    the start, and is exact without couplings. Joint marginals are products of the marginals.

    Args:
        energy: a Boltzmann machine, restricted or not, on any device; a bipartite energy's labels are the
            visible units.
        num_iters: the largest number of iterations.
        tol: an example has converged once an iteration changes no q_i by more than ``tol``.
        init: the first q, in [0, 1]; by default σ(2 unary) or σ(visible), the marginals without couplings.
        known: {0, 1, NaN}, NaN for a free label; the bound is then for the log partition over labellings with
            the known labels.

    Returns:
        Marginals with ``status.exact`` false, and in ``status.residual`` the last change of q.

    Raises:
        ValueError: NaN or infinity in the energy, or couplings that are not symmetric; ``num_iters`` below 1;
            a negative ``tol``; ``known`` of another shape than (batch, labels), or with impossible values;
            ``init`` of another shape or dtype, outside [0, 1], or in contradiction to ``known``.
    """
    energy.check_values()
    check_count("num_iters", num_iters)
    check_not_negative("tol", tol)
    start = uncoupled(energy)
    check_known(known, energy.device, *start.shape)
    if init is None:
        start = clamp(start, known)
    else:
        check_shape("init", init, *start.shape)
        check_like("init", init, "energy", start)
        check_probabilities("init", init)
        check_agreement(init, known)
        start = init
    update = sweep(energy, known)
    labels, status = ascent.repeat(
        lambda labels: update(labels, lambda means: means)[0], start, num_iters=num_iters, tol=tol
    )
    entropy = (entr(labels) + entr(1 - labels)).sum(-1)
    if isinstance(energy, PairwiseEnergy):
        # A score is linear in each label, so under independent labels its mean is the score of the means.
        return Marginals(labels, energy.score(labels) + entropy, status)
    # With r maximised out, the bound is the entropy of q minus the free energy of the means.
    hidden = energy.hidden_given_visible(labels)
    return BipartiteMarginals(labels, hidden, entropy - energy.free_energy(labels), status)
