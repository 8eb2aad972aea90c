"""Expected measures of labellings under weighted ones: the best labelling, and how far others may exceed it.

Everywhere ``labels`` are weighted labellings (batch or 1, labellings, labels), ``probability`` their weights
(batch, labellings), which lack ``left`` (batch,) of 1: the probability of labellings that are not among them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["F1", "HAMMING", "JACCARD", "MAX_COMPARED_LABELS", "Measure", "labelling_of_most_f1"]

# All pairs of 2^10 labellings are compared in one matrix product.
MAX_COMPARED_LABELS = 10
# Labellings that are most probable, or drawn first, to try where not all pairs can be compared.
LIKELY_CANDIDATES = 32
# Answers with more labels are held to a cruder bound, for its table would be large.
_TABLE_LABELS = 30


class Measure(NamedTuple):
    """A measure of agreement in [0, 1].

    Args:
        choose: (labels, probability) → the best labelling of each example, (batch, labels).
        gain: (labels, a labelling (batch, labels)) → what it is worth against each, (batch, labellings).
        best: (labels, probability) → no labelling is worth more against these, (batch,).
        regret: (labels, probability, left, a labelling) → by how much any other may be worth more.
    """

    choose: Callable[[Tensor, Tensor], Tensor]
    gain: Callable[[Tensor, Tensor], Tensor]
    best: Callable[[Tensor, Tensor], Tensor]
    regret: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]

    def worth(self, labels: Tensor, probability: Tensor, found: Tensor) -> Tensor:
        """The expected measure of a labelling, of these labellings alone, (batch,)."""
        return (probability * self.gain(labels, found)).sum(-1)


def expected(labels: Tensor, probability: Tensor, values: Tensor) -> Tensor:
    """Σ_y P(y) y_i values_y, (batch, labels, columns), for values (batch or 1, labellings, columns)."""
    if len(labels) < len(probability):
        products = labels[0, :, :, None] * values[0, :, None, :]
        return (probability @ products.flatten(1)).unflatten(1, products.shape[1:])
    return (labels * probability[..., None]).mT @ values


# Hamming: labels one by one, of any number of values.


def _value_masses(labels: Tensor, probability: Tensor) -> Tensor:
    """P(y_i = s), (batch, labels, values)."""
    values = range(max(int(labels.max()) + 1, 2))
    return torch.stack(
        [torch.einsum("bn,bni->bi", probability, _batched(labels == s, probability)) for s in values], -1
    )


def _batched(labels: Tensor, probability: Tensor) -> Tensor:
    return labels.expand(len(probability), -1, -1).to(probability)


def _most_probable_values(labels: Tensor, probability: Tensor) -> Tensor:
    mass = _value_masses(labels, probability)
    # Of equals the larger value, so that 1 where it is as probable as 0.
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


# F1: given the size of the answer, the expectation is a sum over its labels.


def _size_weights(labels: Tensor, probability: Tensor) -> tuple[Tensor, Tensor]:
    """Σ_y P(y) 2 y_i / (size + |y|), (batch, labels, sizes) for sizes 1 …, and P(∅), (batch,)."""
    sizes = torch.arange(1, labels.shape[-1] + 1, device=labels.device)
    occurring = labels.sum(-1).unique()
    has_size = (labels.sum(-1, keepdim=True) == occurring).to(probability)
    weight = 2 / (occurring[:, None] + sizes).to(probability)
    empty = (probability * (labels.sum(-1) == 0)).sum(-1)
    return expected(labels, probability, has_size) @ weight, empty


def _ranked(weights: Tensor, empty: Tensor) -> tuple[Tensor, Tensor]:
    """For sizes 1 … the labels from the best for F1, (batch, sizes, labels); expected F1 of sizes 0 …."""
    ordered, order = weights.mT.sort(dim=-1, descending=True, stable=True)
    worth = ordered.cumsum(-1).diagonal(dim1=-2, dim2=-1)
    return order, torch.cat([empty[:, None], worth], 1)


def labelling_of_most_f1(weights: Tensor, empty: Tensor) -> Tensor:
    """The labelling of largest expected F1, (batch, labels) (Dembczyński et al. 2011).

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
    """The labellings of every size that are best for F1, (batch, sizes, labels), and their expected F1."""
    order, worth = _ranked(*_size_weights(labels, probability))
    sizes = torch.arange(1, order.shape[-1] + 1, device=labels.device)
    within = (sizes <= sizes[:, None]).long().expand(len(order), -1, -1)
    chosen = torch.zeros_like(order).scatter_(-1, order, within)
    return torch.cat([torch.zeros_like(chosen[:, :1]), chosen], 1), worth


def _best_f1(labels: Tensor, probability: Tensor) -> Tensor:
    return labelling_of_most_f1(*_size_weights(labels, probability))


def _f1_gain(labels: Tensor, found: Tensor) -> Tensor:
    both, sizes = _overlap(labels, found)
    return torch.where(sizes == 0, 1.0, 2 * both / sizes.clamp(min=1))


def _f1_best(labels: Tensor, probability: Tensor) -> Tensor:
    return _ranked(*_size_weights(labels, probability))[1].amax(-1)


def _f1_regret(labels: Tensor, probability: Tensor, left: Tensor, found: Tensor) -> Tensor:
    """The most by which an answer that keeps k of the labels found, and adds others, may be better.

    On what is known it is worth at most the k and the others of largest weight; on what is left it gains at
    most what :func:`_f1_advantages` says.
    """
    weights, empty = _size_weights(labels, probability)
    own = (probability * _f1_gain(labels, found)).sum(-1)
    most = torch.empty_like(left)
    for size in found.sum(-1).unique().tolist():
        rows = (found.sum(-1) == size).nonzero()[:, 0]
        some, held = weights[rows], found[rows].bool()
        kept = some[held].view(len(rows), size, some.shape[2]).sort(1, descending=True).values
        added = (
            some[~held].view(len(rows), some.shape[1] - size, some.shape[2]).sort(1, descending=True).values
        )
        none = torch.zeros_like(some[:, :1])
        kept, added = (torch.cat([none, ordered.cumsum(1)], 1) for ordered in (kept, added))
        # Nothing at all: worth P(∅) and, where the answer is not empty either, 1 on what is left.
        gains = [empty[rows] + left[rows] * (size > 0)]
        for k in range(size + 1):
            sizes = torch.arange(max(k, 1), k + added.shape[1], device=left.device)
            if not len(sizes):
                continue
            worth = kept[:, k, sizes - 1] + added[:, sizes - k, sizes - 1]
            advantage = _f1_advantages(size, k, some.shape[1]).to(left)[sizes]
            gains.append((worth + left[rows, None] * advantage).amax(1))
        most[rows] = torch.stack(gains).amax(0)
    return (most - own).clamp(min=0)


@lru_cache(1024)
def _f1_advantages(size: int, kept: int, num_labels: int) -> Tensor:
    """max_y F1(ŷ', y) − F1(ŷ, y) for |ŷ| = ``size``, |ŷ ∩ ŷ'| = ``kept``, by |ŷ'| = 0 … ``num_labels``.

    The worst y holds all labels that ŷ' alone has, none that ŷ alone has, c of those of both, and j others.
    """
    other = torch.arange(num_labels + 1, dtype=torch.float64)[:, None, None]
    if size > _TABLE_LABELS:
        return torch.where(other[:, 0, 0] == size, (size - kept) / max(size, 1), 1.0).clamp(max=1)
    c = torch.arange(kept + 1)[:, None]
    j = torch.arange(num_labels + 1)
    added = (other - kept).clamp(min=0)
    truth = added + c + j
    theirs = 2 * (added + c) / (other + truth).clamp(min=1)
    ours = 2 * c / (size + truth).clamp(min=1)
    # With nothing in it, y is worth 1 to an empty answer alone.
    ours = torch.where((truth == 0) & (size == 0), 1.0, ours)
    return (theirs - ours).flatten(1).amax(1).clamp(min=0)


# Jaccard: all pairs where labels are few, else the likely answers.


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


def _jaccard_gain(labels: Tensor, found: Tensor) -> Tensor:
    both, sizes = _overlap(labels, found)
    return torch.where(sizes == 0, 1.0, both / (sizes - both).clamp(min=1))


def _jaccard_best(labels: Tensor, probability: Tensor) -> Tensor:
    """By |ŷ ∩ y| / max(|ŷ|, |y|), which is no smaller, and of an answer's size is a sum over its labels."""
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
    """|ŷ ∩ y| and |ŷ| + |y|, (batch, labellings)."""
    both = (labels.double() @ found.double()[..., None])[..., 0]
    return both, labels.sum(-1) + found.sum(-1, keepdim=True)


HAMMING = Measure(_most_probable_values, _hamming_gain, _hamming_best, _hamming_regret)
F1 = Measure(_best_f1, _f1_gain, _f1_best, _f1_regret)
JACCARD = Measure(_best_jaccard, _jaccard_gain, _jaccard_best, _jaccard_regret)
