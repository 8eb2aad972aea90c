"""Labels from beliefs: each visible unit at its likelier value, by marginals or by max-marginals."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from lmbm_torch.energies.bipartite import BipartiteEnergy
from lmbm_torch.inference import matrix_bp
from lmbm_torch.inference.results import BipartiteMarginals, Decoding, Status

__all__ = ["joint_modes", "marginal_modes"]


@torch.no_grad()
def marginal_modes(
    energy: BipartiteEnergy,
    *,
    marginals: Callable[[BipartiteEnergy], BipartiteMarginals] = matrix_bp.marginals,
) -> Decoding:
    """v_i = [P(v_i = 1) > ½], which gets the most labels right on average (section 3.3 of the 2017 paper).

    Args:
        energy: a bipartite energy.
        marginals: :func:`matrix_bp.marginals <lmbm_torch.inference.matrix_bp.marginals>` or
            :func:`mean_field.marginals <lmbm_torch.inference.mean_field.marginals>` with its settings.

    Returns:
        Labels whose objective is the expected number of right ones under these marginals, the largest
        possible; the ``status`` is that of the marginals.
    """
    found = marginals(energy)
    expected = torch.maximum(found.visible, 1 - found.visible).sum(-1)
    return Decoding((found.visible > 0.5).long(), expected, expected, found.status)


@torch.no_grad()
def joint_modes(
    energy: BipartiteEnergy,
    *,
    max_marginals: Callable[[BipartiteEnergy], BipartiteMarginals] = matrix_bp.max_marginals,
) -> Decoding:
    """v_i = [max-marginal of v_i = 1 is above ½]: the visible part of the joint MAP, where it is exact.

    Args:
        energy: a bipartite energy.
        max_marginals: :func:`matrix_bp.max_marginals <lmbm_torch.inference.matrix_bp.max_marginals>` with its
            settings.

    Returns:
        Labels and the best states of the ``hidden`` units given them, with their score; the bound is infinite
        where propagation is not exact.
    """
    found = max_marginals(energy)
    labels = (found.visible > 0.5).long()
    hidden = (energy.hidden_fields(labels) > 0).long()
    score = energy.score(labels, hidden)
    exact = found.status.exact & (score >= _rounded_down(found.log_partition))
    bound = torch.where(exact, score, torch.inf)
    status = Status(exact, found.status.converged, found.status.num_iters, found.status.residual)
    return Decoding(labels, score, bound, status, hidden=hidden)


def _rounded_down(score: Tensor) -> Tensor:
    """The largest score, less a margin for rounding; each unit breaks ties on its own."""
    return score - 1e3 * torch.finfo(score.dtype).eps * (1 + score.abs())
