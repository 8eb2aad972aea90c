"""Bayes-optimal labellings of directed models: labellings of largest expected measure, and the regret.

The expectation is over the joint distribution of the labels under a mixture of the given models with equal
weights. For belief networks of up to 14 labels, all labellings are enumerated. Otherwise, the most probable
labellings are found until no labelling can be better than the answer by more than the tolerance
(:mod:`lmbm_torch.inference.search.most_probable`). If this needs too many labellings, because the probability
is spread evenly, samples give the answer. The labelling of largest expected exact match is the most probable
labelling, found by :func:`lmbm_torch.inference.search.mixture.decode` for any number of labels.

Under rules the distribution is conditional on the rules, computed from the likely labellings
(:func:`lmbm_torch.inference.search.mixture.labellings`). If the labelling of largest expected measure obeys
the rules, it is the answer. Otherwise the answer is the best of the likely labellings that obey the rules,
with the measure of the labelling without rules as bound.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from lmbm_torch.checks import check_count, check_not_negative
from lmbm_torch.constraints import Constraints
from lmbm_torch.energies import DirectedEnergy, SequentialEnergy
from lmbm_torch.inference.common.given import clamp
from lmbm_torch.inference.common.limits import LIMITS
from lmbm_torch.inference.common.results import Decoding, Status, joined, rows_of
from lmbm_torch.inference.expected.measures import F1, JACCARD, MEASURES, Measure
from lmbm_torch.inference.sampling import ancestral
from lmbm_torch.inference.search import branch_and_bound, mixture
from lmbm_torch.inference.search.mixture import Members
from lmbm_torch.inference.search.most_probable import affordable_labellings
from lmbm_torch.inference.search.sequential import Sequential
from lmbm_torch.memory import part_bytes
from lmbm_torch.shapes import Float, Int, Known

__all__ = []

# Default largest regret of an answer, in units of the measure.
TOLERANCE = 0.01
# Largest probability that the likely labellings may leave out: up to this value most answers are proven;
# above it answers by samples are better (scripts/bench/expected_f1.py).
MASS_LEFT = 0.3
# Largest number of nodes, for each label, of a search that only bounds the probability of a labelling.
_NODES_PER_LABEL = 10
# Largest number of labels for which answers by samples are computed for all examples together.
_MANY_LABELS = 64
# Largest bytes of one tensor of shape (instances, labellings, labels).
_CHUNK_BYTES = 2**27
# Largest number of likely labellings among which the best allowed labelling is searched.
MAX_COMPARED = 256
# Factor by which the requested probability left out shrinks from one enumeration to the next.
_FEWER = 0.3


@torch.no_grad()
def decode(
    energies: Sequence[DirectedEnergy] | Sequence[SequentialEnergy],
    measure: str,
    *,
    known: Known | None = None,
    tolerance: float = TOLERANCE,
    mass_left: float = MASS_LEFT,
    max_labellings: int | None = None,
    num_samples: int = LIMITS.samples,
    generator: torch.Generator | None = None,
) -> Decoding:
    """Return labellings of largest expected measure, by the most probable labellings or by samples.

    ``"hamming"`` is 1 − |ŷ Δ y| / K, for labels of any number of values; ``"f1"`` is 2 |ŷ ∩ y| / (|ŷ| + |y|)
    and ``"jaccard"`` is |ŷ ∩ y| / |ŷ ∪ y|, both 1 for two empty label sets. Among answers with a given number
    of labels, the expected F1 is a sum over the answer's labels (Dembczyński et al. 2011). For Jaccard the
    answer is the best of some candidates, and the regret bounds the advantage of all further labellings.

    Args:
        energies: the members of a mixture with equal weights, of the same shape.
        measure: a name in :data:`~lmbm_torch.inference.expected.measures.MEASURES`.
        known: the values of known labels, NaN for a label to decode. If the known labels are impossible, the
            other labels are 0 and nothing is proven.
        tolerance: the largest regret at which the enumeration of labellings ends, and
        mass_left: the largest probability of labellings left out at which the enumeration ends.
        max_labellings: the largest number of labellings for each member and instance; None for 10,000, and
            fewer for more than 100 labels.
        num_samples: the number of draws for each instance without known labels whose likely labellings leave
            out more than 0.3 of the probability. Compiled code draws for F1 of one belief network on the CPU.
        generator: the source of randomness, on the energies' device.

    Returns:
        A :class:`Decoding` with the expected measure as objective. ``status.exact``: no labelling is better;
        ``status.converged``: ``max_labellings`` did not end the enumeration; ``status.residual``: the regret,
        or the standard error of the objective for an answer by samples.

    Raises:
        ValueError: no members, members of different shape, dtype or device; labels of several values for F1
            or Jaccard; ``known`` of another shape than (batch, labels), or with impossible values; a negative
            tolerance; a limit that is no positive integer.
    """
    first = _checked(energies, measure)
    check_not_negative("tolerance", tolerance)
    check_not_negative("mass_left", mass_left)
    if max_labellings is None:
        max_labellings = affordable_labellings(first.num_labels)
    check_count("max_labellings", max_labellings)
    check_count("num_samples", num_samples)
    if known is not None:
        Sequential.of(first, known)
    found, chosen = [], MEASURES[measure]
    for rows in _chunks(first, min(2**first.num_labels, max_labellings) * len(energies)):
        members: Any = [energy.select(rows) for energy in energies]
        given = None if known is None else known[rows]
        hopeless = _none_is_likely(members, max_labellings) if known is None else []
        found.append(_of_the_likely(members, given, chosen, tolerance, mass_left, max_labellings, hopeless))
    answer = joined(found)
    if known is None:
        _put_samples(answer, energies, chosen, num_samples, generator)
    return answer


@torch.no_grad()
def enumerated(energies: Sequence[DirectedEnergy], measure: str, *, known: Known | None = None) -> Decoding:
    """Return labellings of largest expected measure under belief networks, by enumeration of all labellings.

    Args:
        energies, measure, known: see :func:`decode`. For Jaccard with up to 10 labels, all labellings are
            compared.

    Raises:
        ValueError: see :func:`decode`.
    """
    first = _checked(energies, measure)
    if known is not None:
        Sequential.of(first, known)
    found = []
    for rows in _chunks(first, 2**first.num_labels):
        given = None if known is None else known[rows]
        found.append(_of_all([energy.select(rows) for energy in energies], given, MEASURES[measure]))
    return joined(found)


def _checked(energies: Members, measure: str) -> DirectedEnergy | SequentialEnergy:
    mixture.check_members(energies)
    for member, energy in enumerate(energies):
        states = energy.num_states if isinstance(energy, SequentialEnergy) else (2,)
        if max(states) > 2 and measure != "hamming":
            raise ValueError(f"energies[{member}]: expected binary labels, got num_states {states}")
        energy.check_values()
    return energies[0]


def _none_is_likely(members: Members, max_labellings: int) -> list[int]:
    """Return the examples for which ``max_labellings`` labellings cannot have enough probability together.

    The probability of one labelling is bounded by :func:`_log_prob_of_surest_parents`, or if this does not
    suffice by a search with few nodes.
    """
    networks = [each for each in members if isinstance(each, DirectedEnergy)]
    if not networks:
        return []

    def reached(bounds: list[Tensor]) -> Tensor:
        return max_labellings * torch.stack(bounds).exp().mean(0)

    hopeless = reached([_log_prob_of_surest_parents(each) for each in networks]) < 1 - MASS_LEFT
    rows = (~hopeless).nonzero()[:, 0]
    if len(rows):
        nodes = _NODES_PER_LABEL * members[0].num_labels
        found = [branch_and_bound.decode(each.select(rows), node_limit=nodes).bound for each in networks]
        hopeless[rows] = reached(found) < 1 - MASS_LEFT
    return hopeless.nonzero()[:, 0].tolist()


def _log_prob_of_surest_parents(energy: DirectedEnergy) -> Float[Tensor, " batch"]:
    """Return an upper bound of log P(y): Σ_k max log P(y_k | parents), maximised over y_k and the parents."""
    largest = energy.unary.abs() + energy.parents.abs().sum(-1)
    if energy.clique_weight is not None:
        place = energy.positions.tolist()
        for index, clique in enumerate(energy.cliques):
            child = max(clique, key=place.__getitem__)
            largest[:, child] += energy.clique_weight[..., index].abs()
    return torch.nn.functional.logsigmoid(2 * largest).sum(1)


def _chunks(energy: DirectedEnergy | SequentialEnergy, labellings: int) -> Iterator[slice]:
    # Memory also grows with the number of possible sizes of an answer, which is the number of labels.
    values = max(labellings, energy.num_labels) * energy.num_labels
    step = max(part_bytes(_CHUNK_BYTES) // (8 * values), 1)
    for start in range(0, energy.batch_size, step):
        yield slice(start, start + step)


def _of_all(members: Sequence[DirectedEnergy], known: Tensor | None, measure: Measure) -> Decoding:
    labels, probability = _enumerated(members, known)
    best = measure.choose(labels, probability)
    worth = measure.worth(labels, probability, best).to(members[0].dtype)
    nothing = torch.zeros_like(worth)
    is_exact = measure is not JACCARD or labels.shape[-1] <= LIMITS.compared
    bound = worth if is_exact else measure.best(labels, probability).to(worth).clamp(max=1)
    regret = (bound - worth).clamp(min=0)
    sure = torch.ones_like(worth, dtype=torch.bool)
    status = Status(regret <= 0, sure, sure.long(), regret)
    return Decoding(best, worth, bound.clone(), status, regret=regret, mass_left=nothing)


def _of_the_likely(
    members: Members,
    known: Tensor | None,
    measure: Measure,
    tolerance: float,
    mass_left: float,
    max_labellings: int,
    hopeless: list[int],
) -> Decoding:
    """Return the answer from the most probable labellings, adding labellings until the regret is small.

    Args:
        hopeless: examples without a likely labelling, which are not searched; all their labels are free.
    """
    dtype, rows = members[0].dtype, torch.arange(members[0].batch_size, device=members[0].device)
    passed_over = torch.zeros_like(rows, dtype=torch.bool)
    passed_over[hopeless] = True
    parts, places = [_unknown(members[0], len(hopeless))], [rows[passed_over]]
    rows = rows[~passed_over]
    left = MASS_LEFT
    while len(rows):
        given = None if known is None else known[rows]
        some: Any = [member.select(rows) for member in members]
        likely = mixture.labellings(some, known=given, mass_left=left, max_labellings=max_labellings)
        labels, probability, missing = likely.labels, likely.probability.double(), likely.mass_left.double()
        complete = likely.status.converged
        best, worth, most_known, regret = measure.judged(labels, probability, missing)
        # Treat a regret within rounding errors as 0.
        regret = regret.where(regret > labels.shape[-1] * torch.finfo(dtype).eps, 0)
        is_small = (regret <= tolerance) | (missing <= 0) | (left < min(tolerance, _FEWER**4))
        ends = ~complete | (is_small & (missing <= mass_left))
        bound = (most_known + missing).clamp(max=1)
        count = (probability > 0).sum(1)
        # Impossible known labels also count as converged, since there is nothing to search for.
        ended = (regret <= tolerance) | complete | likely.log_known.isneginf()
        status = Status(regret <= 0, ended, count, regret.to(dtype))
        answer = Decoding(
            # Without any labelling found, which means impossible known labels, ``best`` is arbitrary: take 0.
            labels=clamp(best.where(count[:, None] > 0, 0), given),
            objective=worth.to(dtype),
            bound=torch.where((regret <= 0) & (missing <= 0), worth, bound.maximum(worth)).to(dtype),
            status=status,
            regret=regret.to(dtype),
            mass_left=missing.to(dtype),
        )
        parts.append(rows_of(answer, ends.nonzero()[:, 0]))
        places.append(rows[ends])
        rows, left = rows[~ends], left * _FEWER if left * _FEWER > _FEWER**5 else 0.0
    return rows_of(joined(parts), torch.cat(places).argsort())


def _unknown(energy: DirectedEnergy | SequentialEnergy, examples: int) -> Decoding:
    """Return placeholders for examples that were not searched: labels 0, and 1 as the measure's bound."""
    zeros = torch.zeros(examples, dtype=energy.dtype, device=energy.device)
    labels = torch.zeros(examples, energy.num_labels, dtype=torch.int64, device=energy.device)
    unproven = torch.zeros_like(zeros, dtype=torch.bool)
    status = Status(unproven, unproven.clone(), torch.zeros_like(unproven, dtype=torch.int64), zeros + 1)
    return Decoding(labels, zeros, zeros + 1, status, regret=zeros + 1, mass_left=zeros + 1)


def _put_samples(
    answer: Decoding, members: Members, measure: Measure, num_samples: int, generator: torch.Generator | None
) -> None:
    """Replace answers whose labellings leave out much probability by answers from samples, in place."""
    assert answer.mass_left is not None
    assert answer.regret is not None
    unknown = (answer.mass_left > MASS_LEFT).nonzero()[:, 0]
    # The compiled code draws from one network only; for a mixture, all draws are needed together.
    is_one = measure is F1 and len(members) == 1 and ancestral.is_for(members[0])
    step = len(unknown) if is_one else part_bytes(_CHUNK_BYTES) // (8 * num_samples * members[0].num_labels)
    for rows in unknown.split(max(step, 1)) if len(unknown) else ():
        some: Any = [member.select(rows) for member in members]
        if is_one:
            best, mean, error = ancestral.labellings_of_most_f1(some[0], num_samples, generator)
        else:
            best, mean, error = _of_samples(some, measure, num_samples, generator)
        answer.labels[rows] = best
        answer.objective[rows] = mean.to(answer.objective)
        # Samples prove nothing: the measure may be 0, so the regret may be as large as the bound.
        answer.regret[rows] = answer.bound[rows]
        answer.status.residual[rows] = error.to(answer.status.residual)
        answer.status.exact[rows] = False


def _of_samples(
    members: Members, measure: Measure, num_samples: int, generator: torch.Generator | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Draw from the members; return the best labellings (batch, labels), mean measures, and errors."""
    share = -(-num_samples // len(members))
    draws = torch.cat([ancestral.sample(member, share, generator=generator) for member in members])
    labels = draws.movedim(0, 1)
    probability = torch.full(labels.shape[:2], 1 / labels.shape[1], dtype=torch.float64, device=labels.device)
    if labels.shape[-1] <= _MANY_LABELS:
        best = measure.choose(labels, probability)
    else:
        best = torch.zeros_like(labels[:, 0])
        for row, drawn in enumerate(labels):
            # Leave out labels that were never drawn, most of a thousand labels: no best answer has them.
            ever = drawn.any(0)
            best[row, ever] = measure.choose(drawn[None, :, ever], probability[row, None])[0]
    gains = measure.gain(labels, best)
    return best, gains.mean(1), (gains.var(1, correction=0) / labels.shape[1]).sqrt()


def _enumerated(
    members: Sequence[DirectedEnergy], known: Tensor | None
) -> tuple[Int[Tensor, "1 labellings labels"], Float[Tensor, "batch labellings"]]:
    """Return all labellings and their probabilities under the mixture, given the known labels."""
    count, device = members[0].num_labels, members[0].device
    codes = torch.arange(2**count, device=device)[:, None] >> torch.arange(count - 1, -1, -1, device=device)
    labels = codes & 1
    log_prob = mixture.log_prob(members, labels[:, None]).mT
    if known is not None:
        conflicts = ((labels != known[:, None]) & ~known[:, None].isnan()).any(-1)
        log_prob = log_prob.masked_fill(conflicts, -torch.inf)
    return labels[None], log_prob.softmax(-1)


def _together(labels: Tensor, probability: Tensor) -> tuple[Tensor, Tensor]:
    """Return the most probable labelling and the probability, added up over members that found it."""
    best, mass = [], []
    for each, own in zip(labels, probability, strict=True):
        different, place = each.unique(dim=0, return_inverse=True)
        sums = own.new_zeros(len(different)).index_add_(0, place, own)
        best.append(different[sums.argmax()])
        mass.append(sums.amax())
    return torch.stack(best), torch.stack(mass)


def _is_same(labels: Tensor, found: Tensor) -> Tensor:
    return (labels == found[:, None]).all(-1).double()


def _lost(labels: Tensor, probability: Tensor, left: Tensor, found: Tensor) -> Tensor:
    own = (probability * _is_same(labels, found)).sum(-1)
    return (_together(labels, probability)[1].maximum(left) - own).clamp(min=0)


EXACT_MATCH = Measure(
    choose=lambda labels, probability: _together(labels, probability)[0],
    gain=_is_same,
    best=lambda labels, probability: _together(labels, probability)[1],
    regret=_lost,
)


@torch.no_grad()
def decode_allowed(
    energies: Sequence[DirectedEnergy] | Sequence[SequentialEnergy],
    measure: str,
    constraints: Constraints,
    *,
    known: Known | None = None,
    tolerance: float = LIMITS.mass_left,
    max_labellings: int = LIMITS.labellings,
) -> Decoding:
    """Return an allowed labelling of large expected measure, conditional on the rules.

    Args:
        energies: the members of a mixture with equal weights, of the same shape and device.
        measure: a name in :data:`~lmbm_torch.inference.expected.measures.MEASURES`; labels are 0 or 1.
        constraints: rules over the labels.
        tolerance: the largest probability of the labellings left out, as a share of all allowed labellings.
        known, max_labellings: see :func:`lmbm_torch.inference.search.mixture.labellings`.

    Returns:
        ``objective`` is a lower bound of the answer's expected measure, ``bound`` an upper bound for any
        labelling, ``regret`` bounds the difference; ``status.exact`` is true if the regret is 0.

    Raises:
        ValueError: constraints over another number of labels, or constraints that contradict the known
            labels; energies that are no mixture.
    """
    return _decoded_under_rules(energies, MEASURES[measure], constraints, known, tolerance, max_labellings)


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

    Args, Raises: see :func:`decode_allowed`.

    Returns:
        Objective and bound are log-probabilities as in :func:`lmbm_torch.inference.search.mixture.decode`,
        not conditional on the rules.
    """
    found = _decoded_under_rules(energies, EXACT_MATCH, constraints, known, tolerance, max_labellings)
    objective = mixture.log_prob(energies, found.labels)
    # Any other allowed labelling has a share of at most the answer's share plus the residual.
    share = found.objective.double()
    excess = ((share + found.status.residual.double()) / share).log().to(objective)
    # If the answer is impossible, −∞ plus an infinite excess is NaN: replace NaN by the bound 0.
    bound = (objective + excess).nan_to_num(0).clamp(max=0).maximum(objective)
    return Decoding(found.labels, objective, bound, found.status)


def _decoded_under_rules(
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
    broken = torch.from_numpy(constraints.violated(answer.cpu().numpy()).any(1)).to(answer.device)
    # If no labelling was found, the answer may even contradict the known labels.
    is_no_answer = broken | (probability.sum(1) <= 0)
    for row in is_no_answer.nonzero()[:, 0].tolist():
        answer[row] = _best_allowed(chosen, labels[row], probability[row], constraints, known, row)
    worth = chosen.worth(labels, probability, answer)
    bound = (chosen.best(labels, probability) + missing).clamp(max=1).maximum(worth)
    # The probabilities assume that the rules allow all of the probability left out. If the rules allow less,
    # all probabilities grow by the same factor, at most 1 / ``found``.
    found = (1 - missing).clamp(min=torch.finfo(missing.dtype).tiny)
    regret = (chosen.regret(labels, probability, missing, answer) / found).minimum(bound - worth)
    # Treat a regret within rounding errors as 0.
    regret = regret.where(regret > labels.shape[-1] * torch.finfo(energies[0].dtype).eps, 0)
    # The search is also complete if all allowed labellings have probability 0.
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
            raise ValueError(f"known: expected values that the rules allow, got a broken rule in row {row}")
        return torch.from_numpy(allowed).to(labels)
    count = len(candidates)
    worth = measure.worth(labels.expand(count, -1, -1), probability.expand(count, -1), candidates)
    return candidates[int(worth.argmax())]
