"""Sums over all labellings of pairwise models with shared couplings, as matrix products.

The labels are split into two halves. The probability of a labelling is, up to a constant, a product of three
factors: one for the first half and one for the second half, which differ between examples, and one for the
couplings between the halves, which all examples share. With F labels, sums for a batch are products of a
(batch, 2^(F/2)) matrix and a (2^(F/2), 2^(F/2)) matrix.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from typing import Any, cast

import torch
from torch import Tensor

from lmbm_torch.checks import check_shape
from lmbm_torch.energies import PairwiseEnergy
from lmbm_torch.inference.common.limits import LIMITS
from lmbm_torch.memory import part_bytes
from lmbm_torch.shapes import Bool, Float, Int
from lmbm_torch.verdicts import one_door

__all__ = []

# Smallest sum without loss by underflow, relative to the product of both halves' largest factors; in smaller
# sums, terms under 1e-308 may be rounded to 0.
LEAST_SUM = 1e-150
# Largest bytes of the factors of a half for the examples that are summed together.
BATCH_BYTES = 16 * 2**20
# Largest bytes of the shared factors in memory at once.
SHARED_BYTES = 2**20
# Largest bytes of the scores of all labellings of the examples that are enumerated together.
BLOCK_BYTES = 16 * 2**20


@dataclass(frozen=True)
class Sums:
    """Sums over the labellings of some examples.

    Args:
        ones: P(y_i = 1) for each label.
        log_partition: the log partition of each example.
        is_safe: whether the sum is so large that no term is lost by underflow.
    """

    ones: Float[Tensor, "batch labels"]
    log_partition: Float[Tensor, " batch"]
    is_safe: Bool[Tensor, " batch"]


@dataclass(frozen=True)
class Moments:
    """Expected spins and products of spins for some examples.

    Args:
        spins: the mean of each label's spin.
        products: the means of products of two spins, summed over the examples with weights.
        log_partition, is_safe: see :class:`Sums`; unsafe examples are not in ``products``.
    """

    spins: Float[Tensor, "batch labels"]
    products: Float[Tensor, "labels labels"]
    log_partition: Float[Tensor, " batch"]
    is_safe: Bool[Tensor, " batch"]


@torch.no_grad()
def moments_by_halves(
    unary: Float[Tensor, "batch labels"],
    coupling: Float[Tensor, "labels labels"],
    weight: Float[Tensor, " batch"],
) -> Moments:
    """Return expected spins and products of two spins, and log partitions, in double precision."""
    batches = list(_batches(unary))
    weights = weight.split([len(rows) for rows in batches])
    found = [_moments(_Halves.of(rows, coupling), own) for rows, own in zip(batches, weights, strict=True)]
    products = torch.stack([part.products for part in found]).sum(0)
    spins, log_sums, is_safe = (
        torch.cat([getattr(part, name) for part in found]) for name in ("spins", "log_partition", "is_safe")
    )
    return Moments(spins, products, log_sums, is_safe)


@one_door
@torch.no_grad()
def moments(energy: PairwiseEnergy, weight: Float[Tensor, " batch"]) -> Moments:
    """Return the moments of examples with shared couplings, by halves of the labels.

    Examples whose sums by halves may lose terms by underflow are enumerated in turn. The mean spins are
    the gradient of the log partition by the unary log-potentials.

    Args:
        energy: a Boltzmann machine with couplings (labels, labels).
        weight: the weight of each example in the sums of products.

    Raises:
        ValueError: the energy has NaN or infinity, couplings for each example, or more than 22 labels;
            ``weight`` has another shape than (batch,).
    """
    energy.check_values()
    if energy.pairwise.ndim != 2:
        raise ValueError("energy: expected couplings (labels, labels) that examples share, got one for each")
    if energy.num_labels > LIMITS.enumerable:
        raise ValueError(
            f"energy: expected at most {LIMITS.enumerable} labels, since all labellings are summed, got "
            f"{energy.num_labels}"
        )
    check_shape("weight", weight, energy.batch_size)
    unary, coupling, weight = (each.double() for each in (energy.unary, energy.pairwise, weight))
    found = moments_by_halves(unary, coupling, weight)
    alone = (~found.is_safe).nonzero()[:, 0]
    spins, products, log_sums = found.spins, found.products, found.log_partition
    if len(alone):
        every = 2 * labellings(energy.num_labels, unary) - 1
        own, size = (every @ coupling * every).sum(1) / 2, len(every) * unary.itemsize
        for rows in alone.split(max(1, part_bytes(BLOCK_BYTES) // size)):
            scores = torch.addmm(own, unary[rows], every.mT)
            shares = scores.softmax(1)
            spins[rows], log_sums[rows] = shares @ every, scores.logsumexp(1)
            products = products + every.mT * (weight[rows] @ shares) @ every
    spins, products, log_sums = (each.to(energy.dtype) for each in (spins, products, log_sums))
    return Moments(spins, products, log_sums + energy.constant, torch.ones_like(found.is_safe))


@torch.no_grad()
def sums(unary: Float[Tensor, "batch labels"], coupling: Float[Tensor, "labels labels"]) -> Sums:
    """Return marginals and log partitions in double precision."""
    found = [_sums(_Halves.of(rows, coupling.double())) for rows in _batches(unary.double())]
    return Sums(*(torch.cat(each) for each in zip(*found, strict=True)))


def log_partition(
    unary: Float[Tensor, "batch labels"], coupling: Float[Tensor, "labels labels"]
) -> tuple[Float[Tensor, " batch"], Bool[Tensor, " batch"]]:
    """Return log partitions in double precision, differentiable, and whether each sum is safe from underflow.

    With several batches, the backward pass computes the sums again instead of storing them.
    """
    coupling, batches = coupling.double(), list(_batches(unary.double()))
    if len(batches) == 1:
        return _log_partition(unary.double(), coupling)
    # Import here, because the import loads torch's compiler, which takes seconds.
    from torch.utils.checkpoint import checkpoint

    found = [checkpoint(_log_partition, rows, coupling, use_reentrant=False) for rows in batches]
    log_sums, is_safe = (torch.cat(each) for each in zip(*cast(Any, found), strict=True))
    return log_sums, is_safe


def labellings(count: int, like: Tensor) -> Float[Tensor, "labellings labels"]:
    """Return all labellings of ``count`` labels, in {0, 1}."""
    numbers: Int[Tensor, "labellings 1"] = torch.arange(2**count, device=like.device)[:, None]
    return (numbers >> torch.arange(count - 1, -1, -1, device=like.device) & 1).to(like.dtype)


def _batches(unary: Tensor) -> Iterator[Tensor]:
    half_bytes = unary.itemsize << (unary.shape[1] + 1) // 2
    return iter(unary.split(max(1, part_bytes(BATCH_BYTES) // half_bytes)))


@dataclass(frozen=True)
class _Halves:
    """Factors of the exponentiated scores of all labellings, one for each half and one for both together.

    Args:
        first_spins, second_spins: all labellings of the first and of the second half, as spins.
        first, second: the factors of the halves in each example, at most 1; a factor of the first half
            includes its largest coupling with any second half.
        fields: what each labelling of the first half adds to the fields of the second half's labels.
        log_scale: the logarithm of the number by which each example's factors were divided.
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
        """Yield the factors of the couplings between some first halves and all second halves, at most 1."""
        size = max(1, part_bytes(SHARED_BYTES) // (len(self.second_spins) * self.fields.itemsize))
        for start in range(0, len(self.fields), size):
            fields = self.fields[start : start + size]
            scores = fields @ self.second_spins.mT - fields.detach().abs().sum(1, keepdim=True)
            yield slice(start, start + size), scores.exp()


def _scores(unary: Tensor, coupling: Tensor, spins: Tensor) -> Float[Tensor, "batch labellings"]:
    return torch.addmm((spins @ coupling * spins).sum(1) / 2, unary, spins.mT)


def _by_halves(halves: _Halves) -> tuple[Float[Tensor, "batch firsts"], Float[Tensor, "batch seconds"]]:
    """Return the sum over all labellings that contain each first half, and each second half."""
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
