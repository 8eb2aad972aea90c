"""Bayes-optimal labellings of sigmoid belief networks: those whose expected measure is largest.

The expectation is over the joint distribution of the labels, an equal mixture of the networks that are given
(one, as a rule): enumerated up to ``MAX_ENUMERATED_LABELS`` labels, beyond them that of samples. The
labelling of largest expected exact match is the most probable one, which branch and bound finds for any
number of labels (:func:`lmbm_torch.inference.mixture.decode`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from lmbm_torch.checks import check_count, check_known, check_shape
from lmbm_torch.energies import DirectedEnergy
from lmbm_torch.inference import ancestral, mixture
from lmbm_torch.inference.results import Decoding, Status
from lmbm_torch.shapes import Float, Int, Shaped

MAX_ENUMERATED_LABELS = 14
# All pairs of 2^10 labellings are compared in one matrix product.
MAX_COMPARED_LABELS = 10
# Labellings that are most probable, or drawn first, to try where not all pairs can be compared.
LIKELY_CANDIDATES = 32
# Numbers of one tensor over instances, labellings and labels.
_CHUNK = 2**24

Gain = Callable[[Tensor, Tensor], Tensor]
"""Truths (batch or 1, labellings, labels), a labelling (batch, labels) → its worth, (batch, labellings)."""
Choose = Callable[[Tensor, Tensor], Tensor]
"""Truths, as before, and their probabilities (batch, labellings) → the best labelling, (batch, labels)."""


def decode_hamming(
    energies: Sequence[DirectedEnergy],
    *,
    known: Shaped[Tensor, "batch labels"] | None = None,
    num_samples: int = 1000,
    generator: torch.Generator | None = None,
) -> Decoding:
    """argmax_ŷ E[1 − |ŷ Δ y| / K]: every label at its more probable value.

    Args:
        energies: the members, of one shape.
        known: {0, 1} for labels that are given, NaN for those to decode; only where labels are enumerated.
        num_samples: of each instance, where labels are too many to enumerate.
        generator: of the samples, on the energies' device.

    Returns:
        The expected measure is the objective. ``status.exact`` where no labelling is better under the
        enumerated distribution; else the bound is 1 and ``status.residual`` the objective's standard error.

    Raises:
        ValueError: no members, members of different shape, ``known`` where labels are sampled.
    """
    return _decode(energies, known, num_samples, generator, _more_probable, _hamming_gain, all_of=None)


def decode_f1(
    energies: Sequence[DirectedEnergy],
    *,
    known: Shaped[Tensor, "batch labels"] | None = None,
    num_samples: int = 1000,
    generator: torch.Generator | None = None,
) -> Decoding:
    """argmax_ŷ E[2 |ŷ ∩ y| / (|ŷ| + |y|)], 1 where both are empty (Dembczyński et al. 2011).

    Given the size of ŷ the expectation is a sum over its labels of Σ_c P(y_i = 1, |y| = c) / (c + |ŷ|), whose
    largest terms are taken; the best of all sizes is the answer.

    Args, Returns, Raises: see :func:`decode_hamming`.
    """
    return _decode(energies, known, num_samples, generator, _best_f1, _f1_gain, all_of=None)


def decode_jaccard(
    energies: Sequence[DirectedEnergy],
    *,
    known: Shaped[Tensor, "batch labels"] | None = None,
    num_samples: int = 1000,
    generator: torch.Generator | None = None,
) -> Decoding:
    """argmax_ŷ E[|ŷ ∩ y| / |ŷ ∪ y|], 1 where both are empty.

    All labellings are compared up to 10 labels; beyond, the likely ones and the best of each size for the F
    measure, so that the answer need not be the best.

    Args, Returns, Raises: see :func:`decode_hamming`.
    """
    return _decode(
        energies, known, num_samples, generator, _best_jaccard, _jaccard_gain, all_of=MAX_COMPARED_LABELS
    )


@torch.no_grad()
def _decode(
    energies: Sequence[DirectedEnergy],
    known: Tensor | None,
    num_samples: int,
    generator: torch.Generator | None,
    choose: Choose,
    gain: Gain,
    all_of: int | None,
) -> Decoding:
    """``all_of``: the largest number of labels for which ``choose`` is exact; None for any."""
    if not energies:
        raise ValueError("energies: expected at least one member, got none")
    first = energies[0]
    for member, energy in enumerate(energies):
        check_shape(f"energies[{member}].unary", energy.unary, *first.unary.shape)
        energy.check_values()
    check_count("num_samples", num_samples)
    check_known(known, first.device, first.batch_size, first.num_labels)
    enumerated = first.num_labels <= MAX_ENUMERATED_LABELS
    if known is not None and not enumerated:
        raise ValueError(f"known: expected None above {MAX_ENUMERATED_LABELS} labels, got some")
    found, worth, errors = [], [], []
    for rows in _chunks(first, 2**first.num_labels if enumerated else num_samples):
        members = [energy.select(rows) for energy in energies]
        if enumerated:
            labels, probability = _enumerated(members, None if known is None else known[rows])
        else:
            labels, probability = _sampled(members, num_samples, generator)
        best = choose(labels, probability)
        gains = gain(labels, best)
        mean = (probability * gains).sum(-1)
        variance = (probability * (gains - mean[:, None]).square()).sum(-1)
        found.append(best)
        worth.append(mean)
        errors.append(torch.zeros_like(mean) if enumerated else (variance / num_samples).sqrt())
    objective = torch.cat(worth).to(first.dtype)
    is_exact = enumerated and (all_of is None or first.num_labels <= all_of)
    exact = torch.full_like(objective, is_exact, dtype=torch.bool)
    return Decoding(
        labels=torch.cat(found),
        objective=objective,
        bound=objective.clone() if is_exact else torch.ones_like(objective),
        status=Status(
            exact=exact,
            converged=torch.ones_like(exact),
            num_iters=torch.ones_like(exact, dtype=torch.int64),
            residual=torch.cat(errors).to(first.dtype),
        ),
    )


def _chunks(energy: DirectedEnergy, labellings: int) -> Iterator[slice]:
    step = max(_CHUNK // (labellings * energy.num_labels), 1)
    for start in range(0, energy.batch_size, step):
        yield slice(start, start + step)


def _enumerated(
    members: Sequence[DirectedEnergy], known: Tensor | None
) -> tuple[Int[Tensor, "1 labellings labels"], Float[Tensor, "batch labellings"]]:
    """All labellings, and the mixture's probabilities of them, given what is known."""
    count, device = members[0].num_labels, members[0].device
    codes = torch.arange(2**count, device=device)[:, None] >> torch.arange(count - 1, -1, -1, device=device)
    labels = codes & 1
    log_prob = mixture.log_prob(members, labels[:, None]).mT
    if known is not None:
        conflicts = ((labels != known[:, None]) & ~known[:, None].isnan()).any(-1)
        log_prob = log_prob.masked_fill(conflicts, -torch.inf)
    return labels[None], log_prob.softmax(-1)


def _sampled(
    members: Sequence[DirectedEnergy], num_samples: int, generator: torch.Generator | None
) -> tuple[Int[Tensor, "batch samples labels"], Float[Tensor, "batch samples"]]:
    """As many draws from each member, all of the same probability."""
    share = -(-num_samples // len(members))
    draws = torch.cat([ancestral.sample(member, share, generator=generator) for member in members])
    labels = draws.movedim(0, 1)
    return labels, members[0].unary.new_full(labels.shape[:2], 1 / labels.shape[1])


def _expected(labels: Tensor, probability: Tensor, values: Tensor) -> Tensor:
    """Σ_y P(y) y_i values_y, (batch, labels, columns), for values (batch or 1, labellings, columns)."""
    if len(labels) == 1:
        products = labels[0, :, :, None] * values[0, :, None, :]
        return (probability @ products.flatten(1)).unflatten(1, products.shape[1:])
    return (labels * probability[..., None]).mT @ values


def _more_probable(labels: Tensor, probability: Tensor) -> Tensor:
    ones = torch.ones_like(probability[: len(labels), :, None])
    return (_expected(labels, probability, ones)[..., 0] >= 0.5).long()


def _by_size(labels: Tensor, probability: Tensor) -> tuple[Tensor, Tensor]:
    """The labellings of every size that are best for F1, (batch, sizes, labels), and their expected F1."""
    num_labels = labels.shape[-1]
    sizes = torch.arange(1, num_labels + 1, device=labels.device)
    has_size = (labels.sum(-1, keepdim=True) == sizes).to(probability)
    weight = 2 / (sizes[:, None] + sizes).to(probability)
    terms = (_expected(labels, probability, has_size) @ weight).mT
    ordered, order = terms.sort(dim=-1, descending=True, stable=True)
    chosen = torch.zeros_like(terms, dtype=torch.int64)
    within = (sizes <= sizes[:, None]).long().expand(len(terms), -1, -1)
    chosen.scatter_(-1, order, within)
    worth = (ordered * within).sum(-1)
    empty = (probability * (labels.sum(-1) == 0)).sum(-1, keepdim=True)
    nothing = torch.zeros_like(chosen[:, :1])
    return torch.cat([nothing, chosen], 1), torch.cat([empty, worth], 1)


def _best_f1(labels: Tensor, probability: Tensor) -> Tensor:
    candidates, worth = _by_size(labels, probability)
    return candidates[torch.arange(len(worth), device=worth.device), worth.argmax(-1)]


def _best_jaccard(labels: Tensor, probability: Tensor) -> Tensor:
    if len(labels) == 1 and labels.shape[-1] <= MAX_COMPARED_LABELS:
        table = torch.stack([_jaccard_gain(labels, each[None])[0] for each in labels[0]], -1)
        return labels[0, (probability @ table.to(probability)).argmax(-1)]
    likely = probability.topk(min(LIKELY_CANDIDATES, probability.shape[1])).indices
    drawn = labels.expand(len(probability), -1, -1).gather(
        1, likely[..., None].expand(-1, -1, labels.shape[-1])
    )
    candidates = torch.cat([_by_size(labels, probability)[0], drawn], 1)
    worth = torch.stack(
        [(probability * _jaccard_gain(labels, each)).sum(-1) for each in candidates.unbind(1)], -1
    )
    return candidates[torch.arange(len(worth), device=worth.device), worth.argmax(-1)]


def _hamming_gain(labels: Tensor, found: Tensor) -> Tensor:
    return 1 - (labels != found[:, None]).double().mean(-1)


def _f1_gain(labels: Tensor, found: Tensor) -> Tensor:
    both, sizes = _overlap(labels, found)
    return torch.where(sizes == 0, 1.0, 2 * both / sizes.clamp(min=1))


def _jaccard_gain(labels: Tensor, found: Tensor) -> Tensor:
    both, sizes = _overlap(labels, found)
    return torch.where(sizes == 0, 1.0, both / (sizes - both).clamp(min=1))


def _overlap(labels: Tensor, found: Tensor) -> tuple[Tensor, Tensor]:
    """|ŷ ∩ y| and |ŷ| + |y|, (batch, labellings)."""
    both = (labels.double() @ found.double()[..., None])[..., 0]
    return both, labels.sum(-1) + found.sum(-1, keepdim=True)
