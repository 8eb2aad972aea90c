"""Exact decoding of Boltzmann machines by depth-first branch and bound: the peer of the directed search.

No label's margin is settled before all its neighbours are, so that the bounds tell little until late: the
number of nodes grows exponentially with the labels where those of a sigmoid belief network stay few
(lmbm_and_lmsbn_2010, section 2.3). Labels are decided in the order of their total coupling, the strongest
first, each first by the sign that agrees with what is settled of its field. As there, losses tie that differ
by less than a share of 10⁻¹² of the largest one that a label could have.
"""

from __future__ import annotations

import sys
from typing import NamedTuple

import torch
from torch import Tensor

from lmbm_torch.backends.installed import kernels
from lmbm_torch.backends.search.plain.undirected import UndirectedProblem
from lmbm_torch.checks import check_count, check_known, check_positive
from lmbm_torch.energies.base import to_spins
from lmbm_torch.energies.directed import DirectedEnergy
from lmbm_torch.energies.pairwise import PairwiseEnergy
from lmbm_torch.inference import branch_and_bound
from lmbm_torch.inference.branch_and_bound import ROUND_OFF
from lmbm_torch.inference.results import Decoding, Status
from lmbm_torch.shapes import Float, Int, Shaped

__all__ = ["decode", "decode_hinge"]


@torch.no_grad()
def decode_hinge(
    energy: PairwiseEnergy,
    margin: float = 1.0,
    *,
    node_limit: int | None = None,
    known: Shaped[Tensor, "batch labels"] | None = None,
) -> Decoding:
    """argmin_y Σ_i [margin − m_i]_+ (large_margin_boltzmann_machines_2009, problem 3.4).

    The search runs on the CPU, where weights on another device are copied to; results return to it.

    Args:
        energy: a Boltzmann machine.
        margin: γ > 0, in units of the local fields.
        node_limit: end an example's search after so many nodes, but not before its first leaf.
        known: {0, 1, NaN}, NaN for a free label; known labels still pay their own hinge.

    Returns:
        The hinge loss is the objective, bound ≤ objective. ``status.exact``: no labelling is better;
        ``status.converged``: no node limit was met.

    Raises:
        ValueError: NaN or infinity in the energy, or couplings that are not symmetric; ``known`` of another
            shape or with other values; a margin that is not a finite number above 0; a node limit that is no
            count.
    """
    check_positive("margin", margin)
    if node_limit is not None:
        check_count("node_limit", node_limit)
    ordered = _Ordered.of(energy, known)
    problem = UndirectedProblem(
        fields=ordered.fields.cpu().numpy(),
        couplings=ordered.couplings.cpu().numpy(),
        known=ordered.known.cpu().numpy(),
        margin=float(margin),
        round_off=ROUND_OFF,
        node_limit=sys.maxsize if node_limit is None else node_limit,
    )
    best = kernels("search.undirected", "branch and bound").search(problem)
    spins, bound, proven, nodes = (torch.from_numpy(array).to(energy.device) for array in best)
    labels = ordered.by_index((spins > 0).long())
    objective = (margin - energy.to(torch.float64).local_margins(labels)).clamp(min=0).sum(-1)
    bound = torch.where(proven, objective, bound.minimum(objective))
    return _decoding(energy, labels, objective, bound, proven, nodes)


@torch.no_grad()
def decode(
    energy: PairwiseEnergy,
    *,
    node_limit: int | None = None,
    known: Shaped[Tensor, "batch labels"] | None = None,
) -> Decoding:
    """argmax_y score(y), the MAP labelling.

    A label's share of the score, s_i (unary_i + Σ_j pairwise_ij s_j) over the labels decided before it, is
    the local margin of a directed model. With a margin γ that no label exceeds, the hinge loss is linear, and
    :func:`lmbm_torch.inference.branch_and_bound.decode_hinge` maximises the sum of these shares.

    Args:
        energy: a Boltzmann machine, on any device.
        node_limit: see :func:`decode_hinge`, also for ``known``.

    Returns:
        The score is the objective, bound ≥ objective; else: see :func:`decode_hinge`.

    Raises:
        ValueError: see :func:`decode_hinge`.
    """
    ordered = _Ordered.of(energy, known)
    largest = (ordered.fields.abs() + ordered.couplings.abs().sum(-1)).amax(-1)
    largest = torch.where(largest > 0, largest, 1)
    found = branch_and_bound.decode_hinge(
        DirectedEnergy(
            unary=ordered.fields / largest[:, None],
            parents=ordered.couplings.tril() / largest[:, None, None],
            ordering=torch.arange(energy.num_labels, device=energy.device),
        ),
        margin=1.0,
        node_limit=node_limit,
        known=torch.where(ordered.known == 0, torch.nan, (ordered.known + 1) / 2),
    )
    assert found.nodes is not None
    labels = ordered.by_index(found.labels)
    precise = energy.to(torch.float64)
    objective = precise.score(labels)
    bound = precise.constant + largest * (energy.num_labels - found.bound)
    bound = torch.where(found.status.exact, objective, bound.maximum(objective))
    return _decoding(energy, labels, objective, bound, found.status.converged, found.nodes)


class _Ordered(NamedTuple):
    """A batch in float64, the labels of each example in the order in which they are decided."""

    order: Int[Tensor, "batch labels"]
    fields: Float[Tensor, "batch labels"]
    couplings: Float[Tensor, "batch labels labels"]
    known: Float[Tensor, "batch labels"]

    @classmethod
    def of(cls, energy: PairwiseEnergy, known: Tensor | None) -> _Ordered:
        """Check what came; known labels come first, being decided already."""
        energy.check_values()
        check_known(known, energy.device, energy.batch_size, energy.num_labels)
        spins = torch.zeros_like(energy.unary, dtype=torch.float64)
        if known is not None:
            spins = to_spins(known, torch.float64).nan_to_num(0.0)
        pairwise = energy.pairwise.double().expand(energy.batch_size, -1, -1)
        strength = torch.where(spins == 0, pairwise.abs().sum(-1), torch.inf)
        order = strength.argsort(dim=-1, descending=True, stable=True)
        row = torch.arange(energy.batch_size, device=energy.device)[:, None]
        return cls(
            order=order,
            fields=energy.unary.double()[row, order],
            couplings=pairwise[row[..., None], order[:, :, None], order[:, None, :]],
            known=spins[row, order],
        )

    def by_index(self, labels: Int[Tensor, "batch labels"]) -> Int[Tensor, "batch labels"]:
        """Labels back at their own indices."""
        return torch.empty_like(labels).scatter(1, self.order, labels)


def _decoding(
    energy: PairwiseEnergy, labels: Tensor, objective: Tensor, bound: Tensor, proven: Tensor, nodes: Tensor
) -> Decoding:
    """The search's answer, numbers in the energy's precision."""
    exact = objective == bound
    objective, bound = objective.to(energy.dtype), bound.to(energy.dtype)
    status = Status(exact, proven, num_iters=nodes, residual=(objective - bound).abs())
    return Decoding(labels=labels, objective=objective, bound=bound, nodes=nodes, status=status)
