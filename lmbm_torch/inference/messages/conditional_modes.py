"""Iterated conditional modes: a labelling is improved by maximising over some units, given all others."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from lmbm_torch.checks import check_count, check_known, check_shape
from lmbm_torch.energies.bipartite import BipartiteEnergy, softplus
from lmbm_torch.inference.common import iterations as ascent
from lmbm_torch.inference.common.given import check_start, clamp
from lmbm_torch.inference.common.results import Decoding, Status
from lmbm_torch.shapes import Float, Known, Shaped
from lmbm_torch.verdicts import one_door

__all__ = ["decode", "marginal_map"]

# Smallest gain for which a unit is flipped, in rounding errors of the summed terms: prevents endless flips.
ROUND_OFF = 8.0


@one_door
@torch.no_grad()
def decode(
    energy: BipartiteEnergy,
    *,
    num_iters: int = 100,
    init: Shaped[Tensor, "batch visible"] | None = None,
    known: Known | None = None,
) -> Decoding:
    """Return a joint mode of v and h: maximise over h, then over v, and repeat until neither changes.

    This is the greedy search of belief_propagation_in_crbms_2017, section 2. The score never falls.

    Args:
        energy: a bipartite energy, on any device.
        num_iters: the largest number of updates of both sides.
        init: {0, 1}, the first visible units; by default 1 where ``energy.visible`` is positive.
        known: {0, 1, NaN}, NaN for a free visible unit.

    Returns:
        The visible labels, the states of the ``hidden`` units, and the score. The bound gives half of a
        positive weight to either side, and is tight only for weak couplings. ``status.converged``: a mode is
        reached.

    Raises:
        ValueError: NaN or infinity in the energy; ``num_iters`` below 1; ``known`` or ``init`` of a wrong
            shape or with values except 0 and 1, or contradicting each other.
    """
    start = _start(energy, num_iters, init, known)

    def update(visible: Tensor) -> Tensor:
        return clamp((energy.visible_fields(best_hidden(visible)) > 0).to(visible.dtype), known)

    def best_hidden(visible: Tensor) -> Tensor:
        return (energy.hidden_fields(visible) > 0).to(visible.dtype)

    visible, status = ascent.repeat(update, start, num_iters=num_iters, tol=0.0)
    hidden = best_hidden(visible)
    objective = energy.score(visible, hidden)
    bound = _bound(energy, known, lambda fields: fields.clamp(min=0))
    return _decoding(visible, objective, bound, status, hidden.long())


@one_door
@torch.no_grad()
def marginal_map(
    energy: BipartiteEnergy,
    *,
    num_iters: int = 50,
    init: Shaped[Tensor, "batch visible"] | None = None,
    known: Known | None = None,
) -> Decoding:
    """Return a mode of v with h summed out: flip single visible units while −free_energy(v) grows.

    The objective −free_energy(v) = log Σ_h exp(score(v, h)) never falls: the routine can improve the
    labels of any other decoder.

    Args:
        energy: a bipartite energy, on any device.
        num_iters: the largest number of sweeps over all visible units.
        init: {0, 1}, the first visible units; by default 1 where ``energy.visible`` is positive.
        known: {0, 1, NaN}, NaN for a free visible unit.

    Returns:
        The visible labels, with a bound as in :func:`decode`; ``status.converged``: no flip of a single unit
        gains more than rounding errors.

    Raises:
        ValueError: see :func:`decode`.
    """
    start = _start(energy, num_iters, init, known)
    free = torch.ones_like(start, dtype=torch.bool) if known is None else known.isnan()
    visible, status = ascent.repeat(
        lambda visible: _sweep(energy, visible, free), start, num_iters=num_iters, tol=0.0
    )
    return _decoding(visible, -energy.free_energy(visible), _bound(energy, known, softplus), status)


def _sweep(energy: BipartiteEnergy, visible: Tensor, free: Tensor) -> Tensor:
    """Go through the visible units once, and flip each unit if the objective rises; return all units."""
    fields = energy.hidden_fields(visible)
    summed = softplus(fields).sum(-1)
    round_off = ROUND_OFF * torch.finfo(energy.dtype).eps
    flips = []
    for unit in range(energy.num_visible):
        step = 1 - 2 * visible[:, unit]
        flipped_fields = fields + step[:, None] * energy.coupling[unit]
        flipped_summed = softplus(flipped_fields).sum(-1)
        own = energy.visible[:, unit]
        gain = step * own + flipped_summed - summed
        flip = (gain > round_off * (flipped_summed + summed + own.abs())) & free[:, unit]
        fields = torch.where(flip[:, None], flipped_fields, fields)
        summed = torch.where(flip, flipped_summed, summed)
        flips.append(flip)
    return torch.where(torch.stack(flips, 1), 1 - visible, visible)


def _start(
    energy: BipartiteEnergy, num_iters: int, init: Tensor | None, known: Tensor | None
) -> Float[Tensor, "batch visible"]:
    energy.check_values()
    check_count("num_iters", num_iters)
    check_known(known, energy.device, *energy.visible.shape)
    if init is None:
        return clamp((energy.visible > 0).to(energy.dtype), known)
    check_shape("init", init, *energy.visible.shape)
    check_start(init, energy.visible, known)
    return init.to(energy.dtype)


def _bound(
    energy: BipartiteEnergy, known: Tensor | None, hidden_value: Callable[[Tensor], Tensor]
) -> Float[Tensor, " batch"]:
    """Return a bound by v_i W_ij h_j ≤ [W_ij]_+ (v_i + h_j) / 2, after which no units are coupled.

    Args:
        energy: a bipartite energy.
        known: {0, 1, NaN}; known units have their known values.
        hidden_value: a function from a hidden unit's field to its term of the bound: maximum or log-sum.
    """
    half = energy.coupling.clamp(min=0) / 2
    if known is None:
        given, free = torch.zeros_like(energy.visible), torch.ones_like(energy.visible)
    else:
        given, free = known.nan_to_num().to(energy.dtype), known.isnan().to(energy.dtype)
    visible = given * energy.visible + free * (energy.visible + half.sum(1)).clamp(min=0)
    hidden = hidden_value(energy.hidden_fields(given) + free @ half)
    return visible.sum(-1) + hidden.sum(-1)


def _decoding(
    visible: Tensor, objective: Tensor, bound: Tensor, status: Status, hidden: Tensor | None = None
) -> Decoding:
    """Return the decoding, with the bound raised to the objective if rounding made it smaller."""
    bound = torch.maximum(bound, objective)
    status = Status(objective == bound, status.converged, status.num_iters, bound - objective)
    return Decoding(visible.long(), objective, bound, status, hidden=hidden)
