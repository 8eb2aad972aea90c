"""Marginal MAP of restricted Boltzmann machines with a bound: one copy of the visible units per hidden unit.

With fields a and c and coupling W, −free_energy(v) = Σ_i a_i v_i + Σ_j softplus(c_j + Σ_i W_ij v_i). Each
hidden unit j gets its own copy of v and a share λ_j of the visible fields, and is maximised separately:

    Σ_j max_v [softplus(c_j + Σ_i W_ij v_i) + Σ_i λ_ij v_i] + Σ_i max(0, a_i − Σ_j λ_ij)

is an upper bound of −free_energy for any λ. Since softplus(s) = max_q [q s + H(q)] over 0 ≤ q ≤ 1, with the
entropy H, a best copy is {i : q W_ij + λ_ij > 0} for some q. As q grows from 0 to 1, there are at most V + 1
such sets for V visible units, found by sorting. Steps that make the copies agree lower the bound (Komodakis,
Paragios and Tziritas, "MRF energy minimization and beyond via dual decomposition", 2011).
belief_propagation_in_crbms_2017 (section 4.2) suggests a decomposition into pairs of units; parts of one
hidden unit and all visible units give bounds at least as tight.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from lmbm_torch.checks import check_count, check_known, check_not_negative
from lmbm_torch.energies.bipartite import BipartiteEnergy, softplus
from lmbm_torch.inference.common import iterations as ascent
from lmbm_torch.inference.common.given import clamp
from lmbm_torch.inference.common.results import Decoding, Status
from lmbm_torch.inference.messages import conditional_modes
from lmbm_torch.shapes import Float, Int, Known
from lmbm_torch.verdicts import one_door

__all__ = ["marginal_map"]

# Number of iterations without a better bound after which steps are shortened: their length is proportional to
# the gap, which overestimates the possible decrease.
PATIENCE = 5
# Factor by which steps are shortened.
SHORTER = 0.7


@one_door
@torch.no_grad()
def marginal_map(
    energy: BipartiteEnergy, *, num_iters: int = 100, tol: float = 1e-6, known: Known | None = None
) -> Decoding:
    """Return the best labels found with the hidden units summed out, and a bound on all other labels.

    The bound is minimised by subgradient descent, with steps in proportion to the remaining gap (Polyak).
    Each iteration tries the labels that most copies have; finally the best labels are improved by flips
    (:func:`lmbm_torch.inference.messages.conditional_modes.marginal_map`).

    Args:
        energy: a bipartite energy, on any device. With V visible and H hidden units, an iteration takes time
            V log V · H for each unfinished example, and some ten tensors of (examples, hidden, visible).
        num_iters: the largest number of iterations.
        tol: an example ends once bound and objective differ by at most ``tol``, in nats.
        known: {0, 1, NaN}, NaN for a free visible unit.

    Returns:
        Visible labels, the objective −free_energy(labels) and the smallest bound; ``status.residual`` is the
        difference; ``status.exact`` and ``status.converged`` are true if it is within ``tol``.

    Raises:
        ValueError: NaN or infinity in the energy; ``num_iters`` below 1; a negative ``tol``; ``known`` of
            another shape than (batch, labels), or with impossible values.
    """
    energy.check_values()
    check_count("num_iters", num_iters)
    check_not_negative("tol", tol)
    check_known(known, energy.device, *energy.visible.shape)
    labels = clamp((energy.visible > 0).to(energy.dtype), known)
    objective = -energy.free_energy(labels)
    bound = torch.full_like(objective, math.inf)
    iterations = torch.zeros_like(objective, dtype=torch.int64)
    parts, length, waited = _parts(energy, known), torch.ones_like(objective), torch.zeros_like(iterations)
    left = torch.arange(energy.batch_size, device=energy.device)
    active = torch.ones_like(left, dtype=torch.bool)
    # Drop examples that are done; on a GPU, where this check waits for the GPU, only now and then.
    every = 1 if energy.device.type == "cpu" else ascent.CHECK_EVERY
    for iteration in range(num_iters):
        copies, copies_worth = _best_copies(parts)
        agreed = copies.mean(1)
        tried = clamp((agreed > 0.5).to(energy.dtype), None if known is None else known[left])
        worth, reached = parts.value(tried), copies_worth.sum(-1) + parts.rest()
        better, lower = active & (worth > objective[left]), active & (reached < bound[left])
        labels[left] = torch.where(better[:, None], tried, labels[left])
        objective[left] = torch.where(better, worth, objective[left])
        bound[left] = torch.where(lower, reached, bound[left])
        iterations[left] += active
        waited[left] = torch.where(lower, 0, waited[left] + 1)
        length[left] *= torch.where((waited[left] > 0) & (waited[left] % PATIENCE == 0), SHORTER, 1.0)
        against = copies - agreed[:, None]
        step = length[left] * (reached - objective[left])
        step = step / against.square().sum((1, 2)).clamp(min=torch.finfo(energy.dtype).tiny)
        active = active & (bound[left] - objective[left] > tol)
        parts = parts._replace(shares=parts.shares - step[:, None, None] * against)
        if (iteration + 1) % every == 0:
            rows = active.nonzero()[:, 0]
            if not len(rows):
                break
            if len(rows) < len(left):
                left, parts, active = left[rows], parts.of(rows), active[rows]
    labels = conditional_modes.marginal_map(energy, init=labels, known=known).labels
    objective = -energy.free_energy(labels.to(energy.dtype))
    bound = torch.maximum(bound, objective)
    gap = bound - objective
    return Decoding(labels, objective, bound, Status(gap <= tol, gap <= tol, iterations, gap))


class _Parts(NamedTuple):
    """Problem of the free visible units: log-potentials, couplings, and the shares of the visible fields."""

    own: Float[Tensor, "batch visible"]
    hidden: Float[Tensor, "batch hidden"]
    weight: Float[Tensor, "batch hidden visible"]
    shares: Float[Tensor, "batch hidden visible"]
    constant: Float[Tensor, " batch"]

    def of(self, rows: Int[Tensor, " rows"]) -> _Parts:
        return _Parts(*(each[rows] for each in self))

    def rest(self) -> Float[Tensor, " batch"]:
        """Return the last sum of the bound, over the visible fields minus all shares, plus the constant."""
        return (self.own - self.shares.sum(1)).clamp(min=0).sum(-1) + self.constant

    def value(self, labels: Float[Tensor, "batch visible"]) -> Float[Tensor, " batch"]:
        """Return −free_energy(labels)."""
        fields = self.hidden + (self.weight @ labels[..., None]).squeeze(-1)
        return (labels * self.own).sum(-1) + softplus(fields).sum(-1) + self.constant


def _parts(energy: BipartiteEnergy, known: Tensor | None) -> _Parts:
    """Set up equal shares of the visible fields; known units are moved into the fields and the constant."""
    free = torch.ones_like(energy.visible) if known is None else known.isnan().to(energy.dtype)
    settled = clamp(torch.zeros_like(energy.visible), known)
    own, weight = free * energy.visible, free[:, None] * energy.coupling.mT
    shares = (own / energy.num_hidden)[:, None].expand_as(weight)
    return _Parts(own, energy.hidden_fields(settled), weight, shares, (settled * energy.visible).sum(-1))


def _best_copies(
    parts: _Parts,
) -> tuple[Float[Tensor, "batch hidden visible"], Float[Tensor, "batch hidden"]]:
    """Return the maximum over v of softplus(c_j + Σ_i W_ij v_i) + Σ_i λ_ij v_i for each j, and the best v."""
    weight, shares = parts.weight, parts.shares
    first = (shares > 0) | ((shares == 0) & (weight > 0))
    # Find units where q W + λ changes its sign between q = 0 and q = 1; they enter the set if W is positive.
    changes = (weight * shares < 0) & (shares.abs() < weight.abs())
    turn = torch.where(changes, shares.abs() / weight.abs(), math.inf)
    order = turn.argsort(dim=-1, stable=True)
    # Whether a unit enters or leaves the set, the field rises by |W|, and the objective loses |λ|.
    rises = torch.where(changes, weight.abs(), 0).gather(-1, order).cumsum(-1)
    prices = torch.where(changes, shares.abs(), 0).gather(-1, order).cumsum(-1)
    field, share = parts.hidden + (weight * first).sum(-1), (shares * first).sum(-1)
    value = softplus(field[..., None] + pad(rises, (1, 0))) + share[..., None] - pad(prices, (1, 0))
    best, count = value.max(-1)
    changed = torch.zeros_like(changes).scatter_(
        -1, order, torch.arange(order.shape[-1], device=order.device) < count[..., None]
    )
    return (first ^ (changed & changes)).to(weight.dtype), best
