"""Measures of agreement, like F1: the labelling of largest expected measure, and the regret.

The expectation is over weighted labellings: ``labels`` (batch or 1, labellings, labels) with weights
``probability`` (batch, labellings); ``left`` (batch,) is the probability of all further labellings.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from lmbm_torch.inference.common.limits import LIMITS
from lmbm_torch.kernels.installed import compiled

__all__ = []

# Number of likely labellings that are candidates for Jaccard if there are too many labels to compare all.
LIKELY_CANDIDATES = 32
# Largest number of labels in an answer for which F1 advantages are computed exactly, else bounded by 1.
_TABLE_LABELS = 30


class Judgement(NamedTuple):
    """Best labelling of each example, and how good it is.

    Args:
        labels: (batch, labels), the best labelling.
        worth: (batch,), the expected measure, summed only over the weighted labellings.
        most: (batch,), an upper bound of ``worth`` for any answer.
        regret: (batch,), an upper bound of how much better any other answer can be.
    """

    labels: Tensor
    worth: Tensor
    most: Tensor
    regret: Tensor


class Measure(NamedTuple):
    """Measure of agreement of an answer with a labelling, in [0, 1], as functions of weighted labellings.

    Args:
        choose: (labels, probability) → the best answer for each example, (batch, labels).
        gain: (labels, answers) → the measure against each labelling, (batch, labellings).
        best: (labels, probability) → an upper bound of the expected measure of any answer, (batch,).
        regret: (labels, probability, left, answers) → an upper bound of any other answer's advantage.
        at_once: (labels, probability, left) → the best answer and the quality, if faster together.
    """

    choose: Callable[[Tensor, Tensor], Tensor]
    gain: Callable[[Tensor, Tensor], Tensor]
    best: Callable[[Tensor, Tensor], Tensor]
    regret: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
    at_once: Callable[[Tensor, Tensor, Tensor], Judgement] | None = None

    def judged(self, labels: Tensor, probability: Tensor, left: Tensor) -> Judgement:
        """Return the best answer with the expected measure, an upper bound, and the regret."""
        if self.at_once is not None:
            return self.at_once(labels, probability, left)
        found = self.choose(labels, probability)
        return Judgement(
            labels=found,
            worth=self.worth(labels, probability, found),
            most=self.best(labels, probability),
            regret=self.regret(labels, probability, left, found),
        )

    def worth(self, labels: Tensor, probability: Tensor, found: Tensor) -> Tensor:
        """Return the expected measure of the answers ``found``, summed over the labellings, (batch,)."""
        return (probability * self.gain(labels, found)).sum(-1)


def expected(labels: Tensor, probability: Tensor, values: Tensor) -> Tensor:
    """Return Σ_y P(y) y_i values_y, (batch, labels, columns), for values (batch, labellings, columns)."""
    if len(labels) < len(probability):
        products = labels[0, :, :, None] * values[0, :, None, :]
        return (probability @ products.flatten(1)).unflatten(1, products.shape[1:])
    return (labels * probability[..., None]).mT @ values


# Hamming: the best value of each label is its most probable value, whatever the other labels.


def _value_masses(labels: Tensor, probability: Tensor) -> Tensor:
    """Return P(y_i = s), (batch, labels, values)."""
    values = range(max(int(labels.max()) + 1, 2))
    return torch.stack(
        [torch.einsum("bn,bni->bi", probability, _batched(labels == s, probability)) for s in values], -1
    )


def _batched(labels: Tensor, probability: Tensor) -> Tensor:
    return labels.expand(len(probability), -1, -1).to(probability)


def _most_probable_values(labels: Tensor, probability: Tensor) -> Tensor:
    mass = _value_masses(labels, probability)
    # Flip twice so that the larger of equally probable values wins.
    return mass.shape[-1] - 1 - mass.flip(-1).argmax(-1)


def _hamming_gain(labels: Tensor, found: Tensor) -> Tensor:
    return 1 - (labels != found[:, None]).double().mean(-1)


def _hamming_best(labels: Tensor, probability: Tensor) -> Tensor:
    return _value_masses(labels, probability).amax(-1).mean(-1)


def _hamming_regret(labels: Tensor, probability: Tensor, left: Tensor, found: Tensor) -> Tensor:
    mass = _value_masses(labels, probability)
    own = mass.gather(-1, found[..., None])
    others = mass.scatter(-1, found[..., None], -torch.inf).amax(-1)
    return (others + left[:, None] - own[..., 0]).clamp(min=0).mean(-1)


# F1: for answers with a given number of labels (size), the expected F1 is a sum over the answer's labels.


def _size_weights(labels: Tensor, probability: Tensor) -> tuple[Tensor, Tensor]:
    """Return Σ_y P(y) 2 y_i / (size + |y|), (batch, labels, sizes) for sizes from 1, and P(∅), (batch,)."""
    sizes = torch.arange(1, labels.shape[-1] + 1, device=labels.device)
    masses, empty, occurring = _size_masses(labels, probability)
    return masses @ (2 / (occurring[:, None] + sizes).to(probability)), empty


def _size_masses(labels: Tensor, probability: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return Σ_y P(y) [|y| = s] y_i, (batch, labels, sizes), P(∅), and the sizes s that occur."""
    is_own = len(labels) == len(probability) and probability.dtype == torch.float64
    is_fast = is_own and labels.device.type == "cpu"
    kernel = compiled("search.samples") if is_fast else None
    if kernel is not None:
        of_labels, of_sizes = map(
            torch.from_numpy,
            kernel.size_masses(labels.contiguous().numpy(), probability.contiguous().numpy()),
        )
        occurring = of_sizes.any(0).nonzero()[:, 0]
        return of_labels[:, occurring].mT, of_sizes[:, 0], occurring
    occurring = labels.sum(-1).unique()
    has_size = (labels.sum(-1, keepdim=True) == occurring).to(probability)
    empty = (probability * (labels.sum(-1) == 0)).sum(-1)
    return expected(labels, probability, has_size), empty, occurring


def _ranked(weights: Tensor, empty: Tensor) -> tuple[Tensor, Tensor]:
    """Sort labels by weight for each size from 1, (batch, sizes, labels), the best first; also return the
    largest expected F1 of an answer of each size from 0.
    """
    ordered, order = weights.mT.sort(dim=-1, descending=True, stable=True)
    worth = ordered.cumsum(-1).diagonal(dim1=-2, dim2=-1)
    return order, torch.cat([empty[:, None], worth], 1)


def labelling_of_most_f1(weights: Tensor, empty: Tensor) -> Tensor:
    """Return the labelling of largest expected F1, (batch, labels) (Dembczyński et al. 2011).

    Args:
        weights: Σ_y P(y) 2 y_i / (size + |y|), (batch, labels, sizes), for sizes 1 to the number of labels.
        empty: P(∅), (batch,).
    """
    order, worth = _ranked(weights, empty)
    size = worth.argmax(-1)
    first = order[torch.arange(len(size), device=size.device), (size - 1).clamp(min=0)]
    places = torch.arange(first.shape[1], device=first.device)
    return torch.zeros_like(first).scatter_(1, first, (places < size[:, None]).long())


def _by_size(labels: Tensor, probability: Tensor) -> tuple[Tensor, Tensor]:
    """Return the answer of largest expected F1 for each size, (batch, sizes, labels), and the expected F1."""
    order, worth = _ranked(*_size_weights(labels, probability))
    sizes = torch.arange(1, order.shape[-1] + 1, device=labels.device)
    within = (sizes <= sizes[:, None]).long().expand(len(order), -1, -1)
    chosen = torch.zeros_like(order).scatter_(-1, order, within)
    return torch.cat([torch.zeros_like(chosen[:, :1]), chosen], 1), worth


def _f1_gain(labels: Tensor, found: Tensor) -> Tensor:
    both, sizes = _overlap(labels, found)
    return torch.where(sizes == 0, 1.0, 2 * both / sizes.clamp(min=1))


def _f1_judged(labels: Tensor, probability: Tensor, left: Tensor) -> Judgement:
    weights, empty, occurring = _occurring(*_size_weights(labels, probability))
    few = weights[..., : len(occurring)]
    best = labelling_of_most_f1(few, empty)
    most = _ranked(few, empty)[1].amax(-1)
    found = torch.zeros_like(labels[0, 0].long()).repeat(len(best), 1).index_copy_(1, occurring, best)
    return Judgement(found, _f1_worth(weights, empty, best), most, _f1_excess(weights, empty, left, best))


def _occurring(weights: Tensor, empty: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the weights (batch, labels, sizes) of labels that are 1 in some labelling, P(∅), and the
    indices of the labels.

    No other label, and no answer with more labels than these, can improve the expected F1.
    """
    occurring = weights[..., 0].any(0).nonzero()[:, 0]
    # If no label occurs, keep label 0: later steps need at least one label.
    occurring = occurring if len(occurring) else torch.zeros_like(empty[:1], dtype=torch.int64)
    return weights[:, occurring], empty, occurring


def _f1_worth(weights: Tensor, empty: Tensor, found: Tensor) -> Tensor:
    """Return the expected F1 of a labelling, (batch,)."""
    size = found.sum(1)
    own = weights.gather(2, (size - 1).clamp(min=0)[:, None, None].expand(-1, weights.shape[1], 1))[..., 0]
    return torch.where(size == 0, empty, (own * found).sum(1))


def _f1_excess(weights: Tensor, empty: Tensor, left: Tensor, found: Tensor) -> Tensor:
    """Return an upper bound of the advantage of any answer over the found answers.

    The bound is over answers that keep k of the found labels and add others. On the weighted labellings, the
    best such answer takes the labels of largest weight; on the probability left, the advantage is at most the
    value of :func:`_f1_advantages`.

    Args:
        weights: (batch, labels, sizes); labels without any weight may be left out, but no sizes.
        found: (batch, labels), the found answers, over the same labels.
    """
    most, num_labels = torch.empty_like(left), weights.shape[2]
    for size in found.sum(1).unique().tolist():
        rows = (found.sum(1) == size).nonzero()[:, 0]
        some, held = weights[rows], found[rows].bool()
        kept, added = (
            _sums_of_largest(some[which].view(len(rows), -1, num_labels)) for which in (held, ~held)
        )
        k, sizes = (
            torch.arange(size + 1, device=left.device)[:, None],
            torch.arange(1, num_labels + 1, device="cpu").to(left.device),
        )
        others = sizes - k
        advantage = _f1_advantages(size, num_labels).to(left)[:, 1:]
        worth = (
            kept
            + added[:, others.clamp(0, added.shape[1] - 1), sizes - 1]
            + left[rows, None, None] * advantage
        )
        worth = worth.masked_fill((others < 0) | (others > num_labels - size), -torch.inf)
        # The empty answer is worth P(∅), and may gain 1 on the probability left if ``found`` is not empty.
        nothing = empty[rows] + left[rows] * (size > 0)
        most[rows] = worth.flatten(1).amax(1).maximum(nothing)
    return (most - _f1_worth(weights, empty, found)).clamp(min=0)


def _sums_of_largest(weights: Tensor) -> Tensor:
    """Return the sums of the k largest weights among the labels, for k from 0, (batch, k, sizes)."""
    return pad(weights.sort(1, descending=True).values.cumsum(1), (0, 0, 1, 0))


@lru_cache(1024)
def _f1_advantages(size: int, num_labels: int) -> Tensor:
    """Return max_y F1(ŷ', y) − F1(ŷ, y) for |ŷ| = ``size``, by |ŷ ∩ ŷ'| from 0 to ``size`` and |ŷ'| from 0.

    The best y has all labels that are only in ŷ', none that are only in ŷ, c of the common labels, and no
    others. The maximum is over c, and is not needed if ŷ' is larger than ŷ, where c = 0 is best.
    """
    kept, other = (
        torch.arange(size + 1.0, device="cpu").double()[:, None],
        torch.arange(num_labels + 1.0, device="cpu").double(),
    )
    if size > _TABLE_LABELS:
        same = (size - kept) / size
        return torch.where(other == size, same, 1.0)
    added = (other - kept).clamp(min=0)[..., None]
    other, c = other[:, None], torch.arange(size + 1.0, device="cpu").double()
    theirs = added + c
    ours = torch.where(theirs + size == 0, 1.0, 2 * c / (size + theirs).clamp(min=1))
    gains = 2 * theirs / (other + theirs).clamp(min=1) - ours
    return gains.masked_fill(c > kept[..., None], 0).clamp(min=0).amax(-1)


# Jaccard: all labellings are candidates if there are few labels, otherwise only the likely ones.


def _best_jaccard(labels: Tensor, probability: Tensor) -> Tensor:
    if len(labels) == 1 and labels.shape[-1] <= LIMITS.compared:
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


def _jaccard_gain(labels: Tensor, found: Tensor) -> Tensor:
    both, sizes = _overlap(labels, found)
    return torch.where(sizes == 0, 1.0, both / (sizes - both).clamp(min=1))


def _jaccard_best(labels: Tensor, probability: Tensor) -> Tensor:
    """Return an upper bound, with max(|ŷ|, |y|) for |ŷ ∪ y|: for each size a sum over the labels."""
    num_labels = labels.shape[-1]
    sizes = torch.arange(1, num_labels + 1, device=labels.device)
    has_size = (labels.sum(-1, keepdim=True) == sizes).to(probability)
    weight = 1 / sizes[:, None].maximum(sizes).to(probability)
    weights = expected(labels, probability, has_size) @ weight
    ordered = weights.sort(1, descending=True).values.cumsum(1)
    empty = (probability * (labels.sum(-1) == 0)).sum(-1)
    return ordered.diagonal(dim1=1, dim2=2).amax(-1).maximum(empty)


def _jaccard_regret(labels: Tensor, probability: Tensor, left: Tensor, found: Tensor) -> Tensor:
    own = (probability * _jaccard_gain(labels, found)).sum(-1)
    return (_jaccard_best(labels, probability) + left - own).clamp(min=0)


def _overlap(labels: Tensor, found: Tensor) -> tuple[Tensor, Tensor]:
    """Return |ŷ ∩ y| and |ŷ| + |y|, (batch, labellings)."""
    both = (labels.double() @ found.double()[..., None])[..., 0]
    return both, labels.sum(-1) + found.sum(-1, keepdim=True)


HAMMING = Measure(_most_probable_values, _hamming_gain, _hamming_best, _hamming_regret)
F1 = Measure(
    choose=lambda labels, probability: labelling_of_most_f1(*_size_weights(labels, probability)),
    gain=_f1_gain,
    best=lambda labels, probability: _ranked(*_size_weights(labels, probability))[1].amax(-1),
    regret=lambda labels, probability, *rest: _f1_excess(*_size_weights(labels, probability), *rest),
    at_once=_f1_judged,
)
JACCARD = Measure(_best_jaccard, _jaccard_gain, _jaccard_best, _jaccard_regret)
MEASURES = {"hamming": HAMMING, "f1": F1, "jaccard": JACCARD}
