"""Sums over all labellings of pairwise models that share their couplings, as products of matrices.

The probability of a labelling is, but for one factor, a product of three numbers: of what its first half of
the labels scores in the example, of what its second half does, and of how well both go together, which all
examples share. A batch's sums are then products of (batch, 2^(F/2)) with (2^(F/2), 2^(F/2)) matrices, and an
example takes exponentials of its halves alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from typing import Any, cast

import torch
from torch import Tensor

from lmbm_torch.memory import part_bytes
from lmbm_torch.shapes import Bool, Float, Int

# A smaller sum, where 1 is the product of what is largest in either half, may have lost terms: numbers below
# 1e-308 are taken for 0.
LEAST_SUM = 1e-150
# Bytes of a half's numbers of the examples that are summed together, and of a part of what they share.
BATCH_BYTES = 16 * 2**20
SHARED_BYTES = 2**20


@dataclass(frozen=True)
class Sums:
    """Of the labellings of some examples.

    Args:
        ones: P(y_i = 1) of each label.
        log_partition: of each example.
        is_safe: whether its sum is large enough to have lost nothing.
    """

    ones: Float[Tensor, "batch labels"]
    log_partition: Float[Tensor, " batch"]
    is_safe: Bool[Tensor, " batch"]


@dataclass(frozen=True)
class Moments:
    """Of the labellings of some examples.

    Args:
        spins: the mean of each label's spin.
        products: the means of two spins' product, summed over the examples, each times its weight.
        log_partition, is_safe: as of :class:`Sums`; an example that is not safe is in no sum.
    """

    spins: Float[Tensor, "batch labels"]
    products: Float[Tensor, "labels labels"]
    log_partition: Float[Tensor, " batch"]
    is_safe: Bool[Tensor, " batch"]


@torch.no_grad()
def moments(
    unary: Float[Tensor, "batch labels"],
    coupling: Float[Tensor, "labels labels"],
    weight: Float[Tensor, " batch"],
) -> Moments:
    """Means of spins and of their products, and log partitions, of tensors in double precision."""
    batches = list(_batches(unary))
    weights = weight.split([len(rows) for rows in batches])
    found = [_moments(_Halves.of(rows, coupling), own) for rows, own in zip(batches, weights, strict=True)]
    products = torch.stack([part.products for part in found]).sum(0)
    spins, log_sums, is_safe = (
        torch.cat([getattr(part, name) for part in found]) for name in ("spins", "log_partition", "is_safe")
    )
    return Moments(spins, products, log_sums, is_safe)


@torch.no_grad()
def sums(unary: Float[Tensor, "batch labels"], coupling: Float[Tensor, "labels labels"]) -> Sums:
    """Marginals and log partitions, in double precision."""
    found = [_sums(_Halves.of(rows, coupling.double())) for rows in _batches(unary.double())]
    return Sums(*(torch.cat(each) for each in zip(*found, strict=True)))


def log_partition(
    unary: Float[Tensor, "batch labels"], coupling: Float[Tensor, "labels labels"]
) -> tuple[Float[Tensor, " batch"], Bool[Tensor, " batch"]]:
    """Log partitions in double precision, differentiable, and whether each has lost nothing.

    Of several batches the backward pass computes once more what it needs, instead of storing it.
    """
    coupling, batches = coupling.double(), list(_batches(unary.double()))
    if len(batches) == 1:
        return _log_partition(unary.double(), coupling)
    # At use: its first call imports torch's compiler, for seconds.
    from torch.utils.checkpoint import checkpoint

    found = [checkpoint(_log_partition, rows, coupling, use_reentrant=False) for rows in batches]
    log_sums, is_safe = (torch.cat(each) for each in zip(*cast(Any, found), strict=True))
    return log_sums, is_safe


def labellings(count: int, like: Tensor) -> Float[Tensor, "labellings labels"]:
    """All labellings of so many labels, in {0, 1}."""
    numbers: Int[Tensor, "labellings 1"] = torch.arange(2**count, device=like.device)[:, None]
    return (numbers >> torch.arange(count - 1, -1, -1, device=like.device) & 1).to(like.dtype)


def _batches(unary: Tensor) -> Iterator[Tensor]:
    half_bytes = unary.itemsize << (unary.shape[1] + 1) // 2
    return iter(unary.split(max(1, part_bytes(BATCH_BYTES) // half_bytes)))


@dataclass(frozen=True)
class _Halves:
    """The factors of all labellings' exponentiated scores.

    Args:
        first_spins, second_spins: all labellings of either half.
        first, second: of each example's halves by themselves, at most 1. The first half's also has what a
            second half can add at best.
        fields: what each first half adds to the second half's labels.
        log_scale: of 1, in each example.
    """

    first_spins: Float[Tensor, "firsts first"]
    second_spins: Float[Tensor, "seconds second"]
    first: Float[Tensor, "batch firsts"]
    second: Float[Tensor, "batch seconds"]
    fields: Float[Tensor, "firsts second"]
    log_scale: Float[Tensor, " batch"]

    @classmethod
    def of(cls, unary: Tensor, coupling: Tensor) -> _Halves:
        middle = unary.shape[1] // 2
        counts = middle, unary.shape[1] - middle
        first_spins, second_spins = (2 * labellings(count, unary) - 1 for count in counts)
        fields = first_spins @ coupling[:middle, middle:]
        first = _scores(unary[:, :middle], coupling[:middle, :middle], first_spins)
        first = first + fields.detach().abs().sum(1)
        second = _scores(unary[:, middle:], coupling[middle:, middle:], second_spins)
        tops = first.detach().amax(1), second.detach().amax(1)
        first, second = ((own - top[:, None]).exp() for own, top in zip((first, second), tops, strict=True))
        return cls(first_spins, second_spins, first, second, fields, torch.stack(tops).sum(0))

    def together(self) -> Iterator[tuple[slice, Float[Tensor, "part seconds"]]]:
        """How well a part of the first halves goes with each second half, 1 at best."""
        size = max(1, part_bytes(SHARED_BYTES) // (len(self.second_spins) * self.fields.itemsize))
        for start in range(0, len(self.fields), size):
            fields = self.fields[start : start + size]
            scores = fields @ self.second_spins.mT - fields.detach().abs().sum(1, keepdim=True)
            yield slice(start, start + size), scores.exp()


def _scores(unary: Tensor, coupling: Tensor, spins: Tensor) -> Float[Tensor, "batch labellings"]:
    return torch.addmm((spins @ coupling * spins).sum(1) / 2, unary, spins.mT)


def _by_halves(halves: _Halves) -> tuple[Float[Tensor, "batch firsts"], Float[Tensor, "batch seconds"]]:
    """The sums of all labellings with each first half, and with each second half."""
    by_first, by_second = torch.empty_like(halves.first), torch.zeros_like(halves.second)
    for part, together in halves.together():
        by_first[:, part] = halves.second @ together.mT
        by_second.addmm_(halves.first[:, part], together)
    return by_first.mul_(halves.first), by_second.mul_(halves.second)


def _sums(halves: _Halves) -> tuple[Tensor, Tensor, Tensor]:
    by_first, by_second = _by_halves(halves)
    total = by_first.sum(1)
    means = by_first @ halves.first_spins, by_second @ halves.second_spins
    ones = (torch.cat(means, 1) / total[:, None] + 1) / 2
    return ones.clamp_(0, 1), halves.log_scale + total.log(), total >= LEAST_SUM


def _moments(halves: _Halves, weight: Float[Tensor, " batch"]) -> Moments:
    by_first, by_second = _by_halves(halves)
    total = by_first.sum(1)
    is_safe = total >= LEAST_SUM
    share = torch.where(is_safe, weight / total, 0.0)
    first, second = halves.first_spins, halves.second_spins
    across = total.new_zeros(first.shape[1], second.shape[1])
    for part, together in halves.together():
        both = (halves.first[:, part] * share[:, None]).mT @ halves.second
        across += first[part].mT @ (both * together) @ second
    own, others = first.mT * (share @ by_first) @ first, second.mT * (share @ by_second) @ second
    products = torch.cat([torch.cat([own, across], 1), torch.cat([across.mT, others], 1)])
    spins = torch.cat([by_first @ first, by_second @ second], 1) / total[:, None]
    return Moments(spins, products, halves.log_scale + total.log(), is_safe)


def _log_partition(unary: Tensor, coupling: Tensor) -> tuple[Tensor, Tensor]:
    halves = _Halves.of(unary, coupling)
    by_second = reduce(torch.add, (halves.first[:, part] @ both for part, both in halves.together()))
    total = (by_second * halves.second).sum(1)
    return halves.log_scale + total.log(), total.detach() >= LEAST_SUM
