"""Exact decoding of Boltzmann machines by depth-first branch and bound: the peer of the directed search.

A search begins from a labelling that flips of single labels have improved, and with every label that its
bounds decide; MAP with the bound of roof duality, which often proves the labelling before any branch. Where
couplings outweigh the evidence and contradict each other, bounds tell little until late, and the number of
nodes grows exponentially with the labels: then a limit ends the search, with the best labelling, and bound,
by then.

Losses tie that differ by less than a share of 10⁻¹² of the largest one that a label could have. Of labellings
that tie that is found which enumeration counts first: 0 comes before 1 at the first label where they differ.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from lmbm_torch.backends.installed import kernels
from lmbm_torch.backends.search.plain.undirected import UndirectedProblem
from lmbm_torch.checks import check_positive
from lmbm_torch.constraints import Constraints
from lmbm_torch.energies import PairwiseEnergy
from lmbm_torch.inference import constrained
from lmbm_torch.inference.branch_and_bound import ROUND_OFF
from lmbm_torch.inference.parts import allowed
from lmbm_torch.inference.parts.known import count_limit, known_spins
from lmbm_torch.inference.parts.local_polytope import hinge_loss
from lmbm_torch.inference.parts.on_host import searched_on_host
from lmbm_torch.inference.results import Decoding, Status, replaced
from lmbm_torch.shapes import Known

__all__ = ["decode", "decode_hinge"]

# The limit of the classifiers that decode by this search: a row of 100 labels takes some 5 ms.
NODE_LIMIT = 40_000
# Under rules: of the search that has them inside, before it gives way to the one that has them around it.
NODES_INSIDE = 4_000


@searched_on_host
@torch.no_grad()
def decode_hinge(
    energy: PairwiseEnergy,
    margin: float = 1.0,
    *,
    node_limit: int | None = None,
    known: Known | None = None,
    constraints: Constraints | None = None,
) -> Decoding:
    """argmin_y Σ_i [margin − m_i]_+ (large_margin_boltzmann_machines_2009, problem 3.4).

    Args:
        energy: a Boltzmann machine, on any device; the search itself runs on the CPU.
        margin: γ > 0, in units of the local fields.
        node_limit: end an example's search after about so many nodes, partial labellings whose bound is
            computed: those that decide one more label of the same one are computed together.
        known: {0, 1, NaN}, NaN for a free label; known labels still pay their own hinge.
        constraints: rules that the labelling must obey, propagated at every node.

    Returns:
        The hinge loss is the objective, bound ≤ objective. ``status.exact``: no labelling is better;
        ``status.converged``: no node limit was met.

    Raises:
        ValueError: NaN or infinity in the energy, or couplings that are not symmetric; ``known`` of another
            shape or with other values; a margin that is not a finite number above 0; a node limit that is no
            count; constraints of another number of labels, or that contradict what is known.
    """
    check_positive("margin", margin)
    if constraints is not None:
        routine = partial(decode_hinge, margin=margin, node_limit=node_limit)
        inside = partial(allowed.least_hinges, margin=margin)
        return _under_rules(energy, constraints, routine, inside, constrained.decode_loss, known, node_limit)
    problem = _problem(energy, node_limit, known)
    best = kernels("search.undirected", "branch and bound").least_hinges(problem, float(margin))
    spins, bound, proven, nodes = map(torch.from_numpy, best)
    labels = (spins > 0).long()
    objective = hinge_loss(energy.to(torch.float64), labels, margin)
    bound = torch.where(proven, objective, bound.minimum(objective))
    return _decoding(energy, labels, objective, bound, proven, nodes)


@searched_on_host
@torch.no_grad()
def decode(
    energy: PairwiseEnergy,
    *,
    node_limit: int | None = None,
    known: Known | None = None,
    constraints: Constraints | None = None,
) -> Decoding:
    """argmax_y score(y), the MAP labelling; where the bound of roof duality proves it, at the root.

    Args:
        energy: a Boltzmann machine, on any device.
        node_limit: see :func:`decode_hinge`, also for ``known`` and ``constraints``.

    Returns:
        The score is the objective, bound ≥ objective; else: see :func:`decode_hinge`.

    Raises:
        ValueError: see :func:`decode_hinge`.
    """
    if constraints is not None:
        routine, inside = partial(decode, node_limit=node_limit), allowed.best_scores
        return _under_rules(energy, constraints, routine, inside, constrained.decode, known, node_limit)
    problem = _problem(energy, node_limit, known)
    best = kernels("search.undirected", "branch and bound").best_scores(problem)
    spins, bound, proven, nodes = map(torch.from_numpy, best)
    labels, precise = (spins > 0).long(), energy.to(torch.float64)
    objective = precise.score(labels)
    bound = torch.where(proven, objective, (precise.constant + bound).maximum(objective))
    return _decoding(energy, labels, objective, bound, proven, nodes)


def _under_rules(
    energy: PairwiseEnergy,
    constraints: Constraints,
    routine: Callable[..., Decoding],
    inside: Callable[..., Decoding],
    around: Callable[..., Decoding],
    known: Tensor | None,
    node_limit: int | None,
) -> Decoding:
    """The answers of ``routine`` that obey the rules; else those of the search with the rules ``inside``.

    Its bounds, unlike roof duality, do not see how pairs contradict each other. So what it has not proven
    soon is left to searches without rules, with the rules ``around`` them.
    """
    if not allowed.suits(energy):
        return around(energy, constraints, routine, known=known)
    soon, sign = count_limit("node_limit", node_limit), -1.0 if around is constrained.decode_loss else 1.0
    inside = partial(inside, constraints=constraints, node_limit=min(soon, NODES_INSIDE))

    def search(energy: PairwiseEnergy, *, known: Tensor | None, top_k: int) -> Decoding:
        found = inside(energy, known=known, top_k=top_k)
        (rows,) = (~found.status.exact).nonzero(as_tuple=True)
        if not len(rows):
            return found
        part = None if known is None else known[rows]
        other = around(energy.select(rows), constraints, routine, known=part)
        return replaced(found, rows, _better(found, rows, other, sign))

    return constrained.where_broken(energy, constraints, routine, search, known=known)


def _better(found: Decoding, rows: Tensor, other: Decoding, sign: float) -> Decoding:
    """Of ``rows`` of what was found and of another decoding the better labellings, and the better bounds.

    Args:
        sign: 1 for scores, −1 for losses.
    """
    objective, bound = sign * found.objective[rows], sign * found.bound[rows]
    is_better = objective > sign * other.objective
    objective = torch.maximum(objective, sign * other.objective)
    bound = torch.maximum(torch.minimum(bound, sign * other.bound), objective)
    status = replace(other.status, exact=bound == objective, residual=bound - objective)
    labels = torch.where(is_better[:, None], found.labels[rows], other.labels)
    return replace(other, labels=labels, objective=sign * objective, bound=sign * bound, status=status)


def _problem(energy: PairwiseEnergy, node_limit: int | None, known: Tensor | None) -> UndirectedProblem:
    """Check what came."""
    most_nodes = count_limit("node_limit", node_limit)
    energy.check_values()
    pairwise = energy.pairwise.double().reshape(-1, energy.num_labels, energy.num_labels)
    tensors = (energy.unary.double(), pairwise, known_spins(energy, known))
    fields, couplings, spins = (each.contiguous().numpy() for each in tensors)
    return UndirectedProblem(fields, couplings, spins, ROUND_OFF, most_nodes)


def _decoding(
    energy: PairwiseEnergy, labels: Tensor, objective: Tensor, bound: Tensor, proven: Tensor, nodes: Tensor
) -> Decoding:
    """The search's answer, numbers in the energy's precision."""
    exact = objective == bound
    objective, bound = objective.to(energy.dtype), bound.to(energy.dtype)
    status = Status(exact, proven, num_iters=nodes, residual=(objective - bound).abs())
    return Decoding(labels=labels, objective=objective, bound=bound, nodes=nodes, status=status)
