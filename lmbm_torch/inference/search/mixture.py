"""Joint decoding of several directed models over the same labels: a mixture of equal weights.

Each member (model) of the mixture proposes its k best labellings. A labelling that no member proposed is, for
each member, no better than the member's k-th labelling. Therefore the best proposal is proven if its value is
at least the combined value of the k-th labellings (threshold rule of Fagin, Lotem and Naor 2003). k is
doubled until this holds, or until a node limit ends a member's search. Values that differ by rounding are
ties.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from lmbm_torch.checks import check_count, check_like, check_shape
from lmbm_torch.constraints import Constraints
from lmbm_torch.energies import DirectedEnergy, SequentialEnergy
from lmbm_torch.inference.common.given import check_rules
from lmbm_torch.inference.common.limits import LIMITS
from lmbm_torch.inference.common.results import (
    Decoding,
    LikelyLabellings,
    StateMarginals,
    Status,
    joined,
    rows_of,
)
from lmbm_torch.inference.search import best_first, branch_and_bound, most_probable
from lmbm_torch.inference.search.sequential import Sequential
from lmbm_torch.shapes import Bool, Float, Int, Known, Labels, Scores
from lmbm_torch.verdicts import searched_on_host

# Factor by which the requested ``mass_left`` is multiplied from pass to pass under rules.
_FEWER = 0.1
# Smallest ``mass_left`` requested under rules; a smaller number is replaced by 0.
_LEAST = 1e-9

Members = Sequence[DirectedEnergy] | Sequence[SequentialEnergy]
Propose = Callable[[Any, Tensor | None, int], Decoding]


def log_prob(energies: Sequence[DirectedEnergy] | Sequence[SequentialEnergy], labels: Labels) -> Scores:
    """Return log (1/E) Σ_e P_e(y), the mixture's log-probability."""
    return _log_mean(torch.stack([energy.log_prob(labels) for energy in energies]))


@searched_on_host
@torch.no_grad()
def decode(
    energies: Sequence[DirectedEnergy] | Sequence[SequentialEnergy],
    *,
    known: Known | None = None,
    top_k: int = 1,
    max_candidates: int = LIMITS.candidates,
    node_limit: int | None = None,
) -> Decoding:
    """Return argmax_y (1/E) Σ_e P_e(y), the most probable labelling under the mixture.

    Args:
        energies: the E members of the mixture, of the same shape.
        known: {0, 1} for known labels, NaN for labels to decode.
        top_k: the number of labellings to return, best first; the bound then holds for all other labellings.
        max_candidates: the largest k. Each member proposes its k best labellings, and k is doubled until the
            answer is proven; at least ``top_k``.
        node_limit: the largest number of nodes of a member's search for an example, see
            :func:`branch_and_bound.decode` and :func:`best_first.decode`; then the example's decoding ends.

    Returns:
        The objective is the mixture's log-probability, larger is better; ``nodes`` are the nodes of all
        searches, ``status.num_iters`` the number of doublings of k.

    Raises:
        ValueError: there are no members, or members differ in shape, dtype or device; ``max_candidates`` is
            below ``top_k``; :func:`branch_and_bound.decode` refuses the input.
    """

    def propose(energy: Any, known: Tensor | None, count: int) -> Decoding:
        search: Any = best_first if isinstance(energy, SequentialEnergy) else branch_and_bound
        return search.decode(energy, known=known, top_k=count, node_limit=node_limit)

    limits = (top_k, max_candidates)
    return _search(
        energies, known, limits, propose, lambda energy, labels: energy.log_prob(labels), _log_mean
    )


@searched_on_host
@torch.no_grad()
def labellings(
    energies: Sequence[DirectedEnergy] | Sequence[SequentialEnergy],
    *,
    known: Known | None = None,
    mass_left: float = LIMITS.mass_left,
    max_labellings: int = LIMITS.labellings,
    constraints: Constraints | None = None,
) -> LikelyLabellings:
    """Return the likely labellings of every member with their probabilities in the mixture.

    A labelling that is likely under several members appears once for each of these members.

    Args:
        energies, known: see :func:`decode`.
        mass_left, max_labellings: limits for each member, see
            :func:`lmbm_torch.inference.search.most_probable.labellings`.
        constraints: rules over labels in {0, 1}. Probabilities are then conditional on the rules, and 0 for a
            labelling that breaks a rule. ``mass_left`` of the result is relative to all allowed labellings, 1
            if none was found; ``log_known`` is an upper bound of the log-probability that the rules and the
            known labels hold. If the members seldom obey the rules, the search takes long.

    Raises:
        ValueError: the constraints are over another number of labels; see :func:`decode` and
            :func:`lmbm_torch.inference.search.most_probable.labellings`.
    """
    check_members(energies)
    if constraints is not None:
        return _allowed_labellings(energies, constraints, known, mass_left, max_labellings)
    limits: dict[str, Any] = {"known": known, "mass_left": mass_left, "max_labellings": max_labellings}
    found = [most_probable.labellings(energy, **limits) for energy in energies]
    if len(found) == 1:
        return found[0]
    log_known = torch.stack([each.log_known for each in found])
    # Given the known labels, a member's weight is proportional to its probability of these labels.
    share = log_known.softmax(0).nan_to_num(1 / len(found))
    left = (share * torch.stack([each.mass_left for each in found])).sum(0)
    # Members of weight 0 contribute nothing, so their status does not matter.
    is_idle = share == 0
    status = Status(
        exact=(torch.stack([each.status.exact for each in found]) | is_idle).all(0),
        converged=(torch.stack([each.status.converged for each in found]) | is_idle).all(0),
        num_iters=torch.stack([each.status.num_iters for each in found]).sum(0),
        residual=left,
    )
    probability = torch.cat(
        [own[:, None] * each.probability for own, each in zip(share, found, strict=True)], 1
    )
    labels = torch.cat([each.labels for each in found], 1)
    return LikelyLabellings(labels, probability, left, _log_mean(log_known), status)


def marginals(
    energies: Sequence[DirectedEnergy] | Sequence[SequentialEnergy],
    *,
    known: Known | None = None,
    mass_left: float = LIMITS.mass_left,
    max_labellings: int = LIMITS.labellings,
    constraints: Constraints | None = None,
) -> StateMarginals:
    """Return P(y_i = s) under the mixture, with errors of at most ``mass_left``; see :func:`labellings`.

    If there are few labellings, all are summed: marginals are exact, as in
    :func:`~lmbm_torch.inference.search.most_probable.marginals`.
    """
    check_members(energies)
    left = most_probable.least_left(energies[0], mass_left, max_labellings)
    limits: dict[str, Any] = {"mass_left": left, "max_labellings": max_labellings}
    found = labellings(energies, known=known, constraints=constraints, **limits)
    return found.marginals(most_probable.num_states(energies[0]), known)


@searched_on_host
@torch.no_grad()
def decode_hinge(
    energies: Sequence[DirectedEnergy],
    margin: float = 1.0,
    *,
    known: Known | None = None,
    top_k: int = 1,
    max_candidates: int = LIMITS.candidates,
    node_limit: int | None = None,
) -> Decoding:
    """Return argmin_y (1/E) Σ_e Σ_i [γ − m_i^e(y)]_+, the labelling of least mean hinge loss.

    Args:
        energies, known, top_k, max_candidates, node_limit: see :func:`decode`.
        margin: γ.

    Returns:
        The objective is the mean hinge loss, smaller is better.

    Raises:
        ValueError: see :func:`decode`.
    """

    def propose(energy: DirectedEnergy, known: Tensor | None, count: int) -> Decoding:
        found = branch_and_bound.decode_hinge(energy, margin, known=known, top_k=count, node_limit=node_limit)
        return replace(found, bound=-found.bound)

    def value(energy: DirectedEnergy, labels: Tensor) -> Tensor:
        return -(margin - energy.local_margins(labels)).clamp(min=0).sum(-1)

    limits = (top_k, max_candidates)
    found = _search(energies, known, limits, propose, value, lambda losses: losses.mean(0))
    return replace(found, objective=-found.objective, bound=-found.bound)


def _allowed_labellings(
    energies: Members, constraints: Constraints, known: Tensor | None, mass_left: float, max_labellings: int
) -> LikelyLabellings:
    """Return :func:`labellings` under rules: search more labellings until enough allowed ones are found.

    In the worst case all of the remaining probability obeys the rules: it must be small relative to the
    probability of the allowed labellings found.
    """
    check_rules(energies[0], constraints, known)
    rows, left = torch.arange(energies[0].batch_size, device=energies[0].device), mass_left
    parts, places = [], []
    while len(rows):
        some: Any = [energy.select(rows) for energy in energies]
        given = None if known is None else known[rows]
        likely = labellings(some, known=given, mass_left=left, max_labellings=max_labellings)
        found = _given_rules(likely, constraints, mass_left)
        ends = found.status.converged | ~likely.status.converged | (left == 0)
        parts.append(rows_of(found, ends.nonzero()[:, 0]))
        places.append(rows[ends])
        rows, left = rows[~ends], left * _FEWER if left * _FEWER > _LEAST else 0.0
    most = max(part.labels.shape[1] for part in parts)
    together = joined([most_probable.widened(part, most) for part in parts])
    return rows_of(together, torch.cat(places).argsort())


def _given_rules(found: LikelyLabellings, constraints: Constraints, asked: float) -> LikelyLabellings:
    """Return the labellings with probabilities conditional on the rules."""
    flat = found.labels.flatten(0, 1).cpu().numpy()
    broken = torch.from_numpy(constraints.violated(flat).any(1)).to(found.labels.device)
    probability = found.probability.masked_fill(broken.unflatten(0, found.labels.shape[:2]), 0)
    # An upper bound: all labellings that were left out may obey the rules.
    total = probability.sum(1) + found.mass_left
    nothing = total <= 0
    left = torch.where(nothing, 1, found.mass_left / total)
    status = replace(found.status, exact=left <= 0, converged=left <= asked, residual=left)
    return LikelyLabellings(
        labels=found.labels,
        probability=torch.where(nothing[:, None], 0, probability / total[:, None]),
        mass_left=left,
        log_known=found.log_known + total.log(),
        status=status,
    )


def check_members(energies: Members) -> None:
    """Raise ValueError if there are no members, or if they differ in shape, states, dtype or device."""
    if not energies:
        raise ValueError("energies: expected at least one member, got none")
    first = energies[0]
    for member, energy in enumerate(energies):
        if isinstance(first, DirectedEnergy) and isinstance(energy, DirectedEnergy):
            name = f"energies[{member}].unary"
            check_shape(name, energy.unary, *first.unary.shape)
            check_like(name, energy.unary, "energies[0].unary", first.unary)
            continue
        if type(energy) is not type(first):
            raise TypeError(
                f"energies[{member}]: expected {type(first).__name__} like energies[0], "
                f"got {type(energy).__name__}"
            )
        assert isinstance(energy, SequentialEnergy)
        assert isinstance(first, SequentialEnergy)
        came, wanted = ((each.batch_size, each.num_states) for each in (energy, first))
        if came != wanted:
            raise ValueError(
                f"energies[{member}]: expected (batch_size, num_states) {wanted} like energies[0], got {came}"
            )


def _search(
    energies: Sequence[DirectedEnergy] | Sequence[SequentialEnergy],
    known: Tensor | None,
    limits: tuple[int, int],
    propose: Propose,
    value: Callable[[Any, Tensor], Tensor],
    combine: Callable[[Tensor], Tensor],
) -> Decoding:
    """Return the labellings of largest combined value, where ``combine`` grows with each member's value."""
    check_members(energies)
    top_k, max_candidates = limits
    check_count("top_k", top_k)
    check_count("max_candidates", max_candidates)
    if max_candidates < top_k:
        raise ValueError(f"max_candidates: expected at least top_k = {top_k}, got {max_candidates}")
    first = energies[0]
    batch, num_labels, device = first.batch_size, first.num_labels, first.device
    labellings = Sequential.of(first, known).labellings().double()

    labels = torch.empty(batch, top_k, num_labels, dtype=torch.int64, device=device)
    objective = torch.empty(batch, top_k, dtype=first.dtype, device=device)
    bound = torch.empty(batch, dtype=first.dtype, device=device)
    nodes, doublings = (torch.zeros(batch, dtype=torch.int64, device=device) for _ in range(2))
    rows, count = torch.arange(batch, device=device), top_k
    while True:
        members = [energy.select(rows) for energy in energies]
        given = None if known is None else known[rows]
        proposals = [propose(member, given, count) for member in members]
        candidates = torch.cat([found.labels.reshape(len(rows), count, -1) for found in proposals], 1)
        by_member = torch.stack([value(member, candidates.movedim(1, 0)) for member in members])
        combined = combine(by_member).mT
        if top_k > 1:
            combined = combined.masked_fill(_repeats(candidates), -torch.inf)
        best, which = (found[:, :top_k] for found in combined.sort(dim=1, descending=True, stable=True))
        unseen = combine(torch.stack([found.bound for found in proposals]))
        labels[rows] = candidates[torch.arange(len(rows), device=device)[:, None], which]
        objective[rows], last = best, best[:, -1]
        # Allow for rounding: even equal members may sum the same losses in different orders.
        size = torch.stack([_size(member) for member in members]).amax(0) + unseen.abs().nan_to_num(posinf=0)
        proven = unseen <= last + 2 * num_labels * torch.finfo(size.dtype).eps * size
        # If the members proposed all labellings, no other labelling can be better.
        bound[rows] = torch.where(proven | (labellings[rows] <= count), last, unseen)
        nodes[rows] += torch.stack([found.status.num_iters for found in proposals]).sum(0)
        # If a search met the node limit, a search for more labellings would meet it, too: end the example.
        complete = torch.stack([found.status.converged for found in proposals]).all(0)
        rows = rows[complete & (bound[rows] > last)]
        if not len(rows) or 2 * count > min(max_candidates, labellings[rows].min()):
            break
        doublings[rows] += 1
        count *= 2
    exact = bound <= objective[:, -1]
    residual = torch.where(exact, 0, bound - objective[:, -1])
    return Decoding(
        labels=labels if top_k > 1 else labels[:, 0],
        objective=objective if top_k > 1 else objective[:, 0],
        bound=bound,
        nodes=nodes,
        status=Status(exact=exact, converged=exact, num_iters=doublings, residual=residual),
    )


def _repeats(labels: Int[Tensor, "batch labellings labels"]) -> Bool[Tensor, "batch labellings"]:
    """Return a mask of the labellings that repeat an earlier labelling of the same example."""
    code = labels.flatten(0, 1).unique(dim=0, return_inverse=True)[1].reshape(labels.shape[:2])
    ordered, place = code.sort(dim=1, stable=True)
    again = torch.zeros_like(ordered, dtype=torch.bool)
    again[:, 1:] = ordered[:, 1:] == ordered[:, :-1]
    return torch.zeros_like(again).scatter(1, place, again)


def _size(energy: DirectedEnergy | SequentialEnergy) -> Float[Tensor, " batch"]:
    """Return the sum of absolute log-potentials, to which rounding errors of local fields are relative."""
    if isinstance(energy, SequentialEnergy):
        return torch.ones(energy.batch_size, dtype=energy.dtype, device="cpu")
    size = energy.unary.abs().sum(-1) + energy.parents.abs().sum((-2, -1))
    return size if energy.clique_weight is None else size + energy.clique_weight.abs().sum(-1)


def _log_mean(values: Tensor) -> Tensor:
    return values.logsumexp(0) - math.log(len(values))
