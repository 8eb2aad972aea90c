"""Labellings of large expected measure among the labellings that obey rules, and the regret.

The distribution is conditional on the rules, by the likely labellings
(:func:`lmbm_torch.inference.search.mixture.labellings`). If the best answer obeys the rules, the answer is
optimal. Else the best likely labelling is taken, with the measure of the former answer as the bound.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lmbm_torch.constraints import Constraints
from lmbm_torch.energies import DirectedEnergy, SequentialEnergy
from lmbm_torch.inference.common.limits import LIMITS
from lmbm_torch.inference.common.results import Decoding, Status
from lmbm_torch.inference.expected.measures import MEASURES, Measure
from lmbm_torch.inference.search import mixture
from lmbm_torch.shapes import Int, Known

__all__ = []


def _together(labels: Tensor, probability: Tensor) -> tuple[Tensor, Tensor]:
    """Return the most probable labelling, possibly found by several members, and the probability."""
    best, mass = [], []
    for each, own in zip(labels, probability, strict=True):
        different, place = each.unique(dim=0, return_inverse=True)
        sums = own.new_zeros(len(different)).index_add_(0, place, own)
        best.append(different[sums.argmax()])
        mass.append(sums.amax())
    return torch.stack(best), torch.stack(mass)


def _most_probable(labels: Tensor, probability: Tensor) -> Tensor:
    return _together(labels, probability)[0]


def _is_same(labels: Tensor, found: Tensor) -> Tensor:
    return (labels == found[:, None]).all(-1).double()


def _most(labels: Tensor, probability: Tensor) -> Tensor:
    return _together(labels, probability)[1]


def _lost(labels: Tensor, probability: Tensor, left: Tensor, found: Tensor) -> Tensor:
    own = (probability * _is_same(labels, found)).sum(-1)
    return (_most(labels, probability).maximum(left) - own).clamp(min=0)


EXACT_MATCH = Measure(_most_probable, _is_same, _most, _lost)
# Likely labellings that are compared for the best allowed labelling.
MAX_COMPARED = 256


@torch.no_grad()
def decode(
    energies: Sequence[DirectedEnergy] | Sequence[SequentialEnergy],
    measure: str,
    constraints: Constraints,
    *,
    known: Known | None = None,
    tolerance: float = LIMITS.mass_left,
    max_labellings: int = LIMITS.labellings,
) -> Decoding:
    """Return an allowed labelling of large expected measure, given that the rules are obeyed.

    Args:
        energies: members of the same size and device of an equal mixture.
        measure: a name in :data:`~lmbm_torch.inference.expected.measures.MEASURES`; labels are 0 or 1.
        constraints: over the labels.
        tolerance: the largest probability, as a share of all allowed labellings, of labellings left out.
        known, max_labellings: see :func:`lmbm_torch.inference.search.mixture.labellings`.

    Returns:
        ``objective``: the least possible expected measure of the labels; ``bound``: the largest of any
        labels; ``regret``: the difference; ``status.exact``: the regret is 0.

    Raises:
        ValueError: constraints of another number of labels, or that contradict the known labels; energies
            that are no mixture.
    """
    return _decode(energies, MEASURES[measure], constraints, known, tolerance, max_labellings)


@torch.no_grad()
def decode_most_probable(
    energies: Sequence[DirectedEnergy] | Sequence[SequentialEnergy],
    constraints: Constraints,
    *,
    known: Known | None = None,
    tolerance: float = LIMITS.mass_left,
    max_labellings: int = LIMITS.labellings,
) -> Decoding:
    """Return the most probable allowed labelling of a mixture, among the likely labellings.

    Args, Raises: see :func:`decode`.

    Returns:
        Objective and bound are log-probabilities as in :func:`lmbm_torch.inference.search.mixture.decode`,
        not conditional on the rules.
    """
    found = _decode(energies, EXACT_MATCH, constraints, known, tolerance, max_labellings)
    objective = mixture.log_prob(energies, found.labels)
    # No other allowed labelling has a share that is larger by more than the residual.
    share = found.objective.double()
    excess = ((share + found.status.residual.double()) / share).log().to(objective)
    # For an impossible answer −∞ and an infinite excess have no sum.
    bound = (objective + excess).nan_to_num(0).clamp(max=0).maximum(objective)
    return Decoding(found.labels, objective, bound, found.status)


def _decode(
    energies: Sequence[DirectedEnergy] | Sequence[SequentialEnergy],
    chosen: Measure,
    constraints: Constraints,
    known: Tensor | None,
    tolerance: float,
    max_labellings: int,
) -> Decoding:
    limits = {"mass_left": tolerance, "max_labellings": max_labellings}
    likely = mixture.labellings(energies, known=known, constraints=constraints, **limits)
    labels, probability, missing = likely.labels, likely.probability.double(), likely.mass_left.double()
    answer = chosen.choose(labels, probability)
    # The best of no labellings need not agree with the known labels, either.
    is_no_answer = _broken(answer, constraints) | (probability.sum(1) <= 0)
    for row in is_no_answer.nonzero()[:, 0].tolist():
        answer[row] = _best_allowed(chosen, labels[row], probability[row], constraints, known, row)
    worth = chosen.worth(labels, probability, answer)
    bound = (chosen.best(labels, probability) + missing).clamp(max=1).maximum(worth)
    # Probabilities are shares of the labellings found and the mass left. If less of the mass left is allowed,
    # all probabilities grow by one factor, largest if no mass left is allowed.
    found = (1 - missing).clamp(min=torch.finfo(missing.dtype).tiny)
    regret = (chosen.regret(labels, probability, missing, answer) / found).minimum(bound - worth)
    # A regret of rounding size is 0.
    regret = regret.where(regret > labels.shape[-1] * torch.finfo(energies[0].dtype).eps, 0)
    # The search is complete if all allowed labellings are impossible.
    converged = likely.status.converged | likely.log_known.isneginf()
    dtype = energies[0].dtype
    return Decoding(
        labels=answer,
        objective=worth.to(dtype),
        bound=bound.to(dtype),
        status=Status(regret <= 0, converged, (probability > 0).sum(1), regret.to(dtype)),
        regret=regret.to(dtype),
        mass_left=missing.to(dtype),
    )


def _best_allowed(
    measure: Measure,
    labels: Int[Tensor, "found labels"],
    probability: Tensor,
    constraints: Constraints,
    known: Tensor | None,
    row: int,
) -> Int[Tensor, " labels"]:
    """Return the likely labelling of largest expected measure, or any allowed labelling if none is likely."""
    order = probability.argsort(descending=True, stable=True)[:MAX_COMPARED]
    candidates = labels[order[probability[order] > 0]]
    if not len(candidates):
        given = torch.full((labels.shape[-1],), torch.nan, device="cpu") if known is None else known[row]
        zeros = torch.zeros(labels.shape[-1], device="cpu").numpy()
        allowed = constraints.nearest(zeros, given.double().cpu().numpy())
        if allowed is None:
            raise ValueError(f"known: expected values that the rules allow, got a contradiction in row {row}")
        return torch.from_numpy(allowed).to(labels)
    count = len(candidates)
    worth = measure.worth(labels.expand(count, -1, -1), probability.expand(count, -1), candidates)
    return candidates[int(worth.argmax())]


def _broken(labels: Tensor, constraints: Constraints) -> Tensor:
    return torch.from_numpy(constraints.violated(labels.cpu().numpy()).any(1)).to(labels.device)
