"""Exact decoding of Boltzmann machines by depth-first branch and bound.

A search starts from a labelling improved by flips of single labels, and fixes every label that the bounds
decide. For the MAP labelling, the bound is roof duality, which often proves the labelling before any branch.
If couplings are stronger than the unary log-potentials and contradict each other, bounds are loose, and the
number of nodes grows exponentially with the number of labels. A limit then ends the search, and the answer is
the best labelling so far with the bound so far.

Losses count as tied if they differ by less than 10⁻¹² of the largest possible loss of a label. Among tied
labellings, the search returns the one with 0 in the first label in which they differ.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from lmbm_torch.checks import check_positive, count_limit
from lmbm_torch.constraints import Constraints
from lmbm_torch.energies import PairwiseEnergy
from lmbm_torch.energies.base import known_spins
from lmbm_torch.inference.common.limits import LIMITS
from lmbm_torch.inference.common.results import Decoding, Status, replaced
from lmbm_torch.inference.relaxations.local_polytope import hinge_loss
from lmbm_torch.inference.search.branch_and_bound import ROUND_OFF
from lmbm_torch.inference.under_rules import allowed, constrained
from lmbm_torch.kernels.installed import kernels
from lmbm_torch.kernels.search.records import UndirectedProblem
from lmbm_torch.shapes import Known
from lmbm_torch.verdicts import searched_on_host

__all__ = ["decode", "decode_by_flips", "decode_hinge"]

# Limits of two rounds of searches under rules: the number of nodes of a search that propagates the rules, and
# the number of parts of a search that splits the labellings by a broken rule. Each search is fast on some
# examples on which the other is slow (scripts/bench/rules.py).
STAGES = ((300, 30), (20_000, LIMITS.parts))


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
    """Return argmin_y Σ_i [margin − m_i]_+, the labelling of least hinge loss
    (large_margin_boltzmann_machines_2009, problem 3.4).

    Args:
        energy: a Boltzmann machine, on any device; the search runs on the CPU.
        margin: γ > 0, in units of the local fields.
        node_limit: the approximate number of nodes after which an example's search ends. A node is a partial
            labelling whose bound is computed; all extensions of a node by one label are computed together.
        known: {0, 1, NaN}, NaN for a free label; hinge losses of known labels are part of the sum.
        constraints: rules that the labelling must obey, propagated at every node.

    Returns:
        The hinge loss is the objective, bound ≤ objective. ``status.exact`` is true if no labelling is
        better, ``status.converged`` if the search ended before the node limit.

    Raises:
        ValueError: NaN or infinity in the energy, or couplings that are not symmetric; ``known`` of another
            shape than (batch, labels), or with impossible values; a margin that is not a finite number above
            0; a node limit that is no positive integer; constraints over another number of labels, or
            constraints that contradict the known labels.
    """
    check_positive("margin", margin)
    if constraints is not None:
        routine = partial(decode_hinge, margin=margin, node_limit=node_limit)
        inside = partial(allowed.least_hinges, margin=margin)
        return _under_rules(energy, constraints, routine, inside, margin, known, node_limit)
    problem = undirected_problem(energy, known, node_limit)
    best = kernels("search.undirected").least_hinges(problem, float(margin))
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
    """Return argmax_y score(y), the MAP labelling.

    Args:
        energy: a Boltzmann machine, on any device.
        node_limit, known, constraints: see :func:`decode_hinge`.

    Returns:
        The score is the objective, bound ≥ objective; for the other fields see :func:`decode_hinge`.

    Raises:
        ValueError: see :func:`decode_hinge`.
    """
    if constraints is not None:
        routine, inside = partial(decode, node_limit=node_limit), allowed.best_scores
        return _under_rules(energy, constraints, routine, inside, None, known, node_limit)
    problem = undirected_problem(energy, known, node_limit)
    best = kernels("search.undirected").best_scores(problem)
    spins, bound, proven, nodes = map(torch.from_numpy, best)
    labels, precise = (spins > 0).long(), energy.to(torch.float64)
    objective = precise.score(labels)
    bound = torch.where(proven, objective, (precise.constant + bound).maximum(objective))
    return _decoding(energy, labels, objective, bound, proven, nodes)


@searched_on_host
@torch.no_grad()
def decode_by_flips(energy: PairwiseEnergy, *, known: Known | None = None) -> Decoding:
    """Return labellings of high score, without a proof: flipping one free label never raises the score.

    The exact searches start from these labellings. A labelling of 45 labels takes some 20 µs. The bound is
    the sum over all labels and pairs of the largest possible term.

    Args:
        energy: a Boltzmann machine, on any device; the flips run on the CPU.
        known: {0, 1, NaN}, NaN for a free label.

    Returns:
        The score is the objective, bound ≥ objective; ``status.exact`` is false everywhere.

    Raises:
        ValueError: NaN or infinity in the energy; ``known`` of another shape than (batch, labels), or with
            impossible values.
    """
    problem = undirected_problem(energy, known)
    spins = torch.from_numpy(kernels("search.undirected").raised_scores(problem))
    labels, precise = (spins > 0).long(), energy.to(torch.float64)
    objective = precise.score(labels)
    bound = precise.constant + precise.unary.abs().sum(1) + precise.pairwise.abs().sum((-1, -2)) / 2
    objective, bound = objective.to(energy.dtype), bound.maximum(objective).to(energy.dtype)
    every = torch.ones_like(objective, dtype=torch.bool)
    nodes = torch.zeros_like(every, dtype=torch.long)
    status = Status(~every, every, num_iters=nodes, residual=bound - objective)
    return Decoding(labels=labels, objective=objective, bound=bound, nodes=nodes, status=status)


def _under_rules(
    energy: PairwiseEnergy,
    constraints: Constraints,
    routine: Callable[..., Decoding],
    inside: Callable[..., Decoding],
    margin: float | None,
    known: Tensor | None,
    node_limit: int | None,
) -> Decoding:
    """Decode by ``routine``, and repeat examples whose answers break a rule by two searches under the rules.

    The search ``inside`` propagates rules, but its bounds ignore contradictions between pairs of labels,
    which roof duality detects. The search around ``routine`` ignores contradictions between rules.

    Args:
        margin: the margin of hinge losses; None for scores.
    """
    around = constrained.decode if margin is None else constrained.decode_loss
    if not allowed.suits(energy):
        return around(energy, constraints, routine, known=known)
    limit = count_limit("node_limit", node_limit)

    def search(energy: PairwiseEnergy, *, known: Tensor | None, top_k: int) -> Decoding:
        found = None
        for nodes, parts in STAGES:
            limits = {"node_limit": min(limit, nodes), "top_k": top_k}
            within = partial(inside, constraints=constraints, **limits)
            without = partial(around, constraints=constraints, routine=routine, part_limit=parts)
            for way in (within, without):
                found = _further(energy, found, way, known, 1.0 if margin is None else -1.0)
        assert found is not None
        return allowed.climbed(energy, found, margin, constraints, known)

    return constrained.where_broken(energy, constraints, routine, search, known=known)


def _further(
    energy: PairwiseEnergy,
    found: Decoding | None,
    way: Callable[..., Decoding],
    known: Tensor | None,
    sign: float,
) -> Decoding:
    """Decode examples without a proof by ``way``, and keep the better answer and the better bound.

    Args:
        sign: 1 if the objective is a score, −1 if a loss.
    """
    if found is None:
        return way(energy, known=known)
    (rows,) = (~found.status.exact).nonzero(as_tuple=True)
    if not len(rows):
        return found
    other = way(energy.select(rows), known=None if known is None else known[rows])
    objective, bound = sign * found.objective[rows], sign * found.bound[rows]
    is_better = objective > sign * other.objective
    objective = torch.maximum(objective, sign * other.objective)
    bound = torch.maximum(torch.minimum(bound, sign * other.bound), objective)
    status = replace(other.status, exact=bound == objective, residual=bound - objective)
    labels = torch.where(is_better[:, None], found.labels[rows], other.labels)
    better = replace(other, labels=labels, objective=sign * objective, bound=sign * bound, status=status)
    return replaced(found, rows, better)


def undirected_problem(
    energy: PairwiseEnergy, known: Tensor | None, node_limit: int | None = None
) -> UndirectedProblem:
    """Check the input, and convert the energy to the compiled search's arrays."""
    most_nodes = count_limit("node_limit", node_limit)
    energy.check_values()
    pairwise = energy.pairwise.double().reshape(-1, energy.num_labels, energy.num_labels)
    tensors = (energy.unary.double(), pairwise, known_spins(energy, known))
    fields, couplings, spins = (each.contiguous().numpy() for each in tensors)
    return UndirectedProblem(fields, couplings, spins, ROUND_OFF, most_nodes)


def _decoding(
    energy: PairwiseEnergy, labels: Tensor, objective: Tensor, bound: Tensor, proven: Tensor, nodes: Tensor
) -> Decoding:
    exact = objective == bound
    objective, bound = objective.to(energy.dtype), bound.to(energy.dtype)
    status = Status(exact, proven, num_iters=nodes, residual=(objective - bound).abs())
    return Decoding(labels=labels, objective=objective, bound=bound, nodes=nodes, status=status)
