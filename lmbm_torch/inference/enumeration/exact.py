"""Enumeration of all labellings: the reference for any kind of energy, and a baseline of speed.

Labellings are numbered, with label 0 as the most significant bit, and computed in chunks that fit into the
CPU's cache. Known labels are not enumerated: an example with F free labels has 2^F labellings. The example
with the most free labels decides whether the batch is refused.

For a restricted Boltzmann machine (bipartite energy), one side is enumerated, and the other side is summed or
maximised out. A compiled kernel finds the best labellings of pairwise energies with shared couplings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, overload

import torch
from torch import Tensor

from lmbm_torch.checks import check_count, check_known, check_positive
from lmbm_torch.energies import (
    BipartiteEnergy,
    ChainEnergy,
    DirectedEnergy,
    Energy,
    PairwiseEnergy,
    RestrictedEnergy,
    SemiChainEnergy,
    TreeEnergy,
)
from lmbm_torch.energies.base import MarginEnergy
from lmbm_torch.inference.common.given import clamp
from lmbm_torch.inference.common.limits import LIMITS
from lmbm_torch.inference.common.results import BipartiteMarginals, Decoding, Marginals, Status
from lmbm_torch.inference.enumeration import kernels as pairwise_enumeration
from lmbm_torch.inference.enumeration import label_halves, one_side
from lmbm_torch.inference.enumeration.one_side import MOST_FREE, OneSide
from lmbm_torch.memory import part_bytes
from lmbm_torch.shapes import Float, Int, Known, Shaped
from lmbm_torch.verdicts import foresee, is_traced, number, one_door

__all__ = [
    "decode",
    "decode_hinge",
    "log_partition",
    "marginal_map",
    "marginals",
    "pairwise_marginals",
    "sample",
]

# Largest bytes of one (labellings, batch, labels) tensor on the CPU; an energy needs three or four at a time,
# which share a cache of some 16 MiB (917 × 14 labels: 1 to 8 MiB are equally fast, 50 MiB take 1.7 times).
CPU_CHUNK_BYTES = 4 * 2**20
# The same on a GPU, where larger chunks save launches of kernels.
DEVICE_CHUNK_BYTES = 256 * 2**20


@one_door
def log_partition(energy: Energy, *, known: Known | None = None) -> Float[Tensor, " batch"]:
    """Return log Σ_y exp(score(y)), over the labellings that agree with ``known``.

    The result is differentiable in the energy's tensors. With several chunks of labellings, the backward pass
    enumerates them again: memory holds only one chunk, and a number for each chunk and example.

    Args:
        energy: any energy over binary labels; a bipartite energy's labels are the visible units.
        known: {0, 1, NaN}, NaN for a free label. For a directed model the result is then log P(known).

    Raises:
        ValueError: the energy has NaN or infinity, or rules that allow no labelling; ``known`` has another
            shape than (batch, labels), or values except 0, 1 and NaN; an example (for a bipartite energy: the
            smaller side) has more than 2^22 labellings.
    """
    if isinstance(energy, BipartiteEnergy):
        side = OneSide.smaller(energy, known)
        side.check_values()
        if known is None and one_side.suits(side.machine):
            return one_side.log_partition(side.machine, lambda machine: log_partition(OneSide(machine)))
        return log_partition(side, known=side.known) if (given := side.given) is None else side.score(given)
    labellings = _Labellings.of(energy, known)
    if known is not None and labellings.most == 0:
        log_sum = energy.score(known)
    elif (by_halves := label_halves.log_partition(energy, known)) is not None:
        return by_halves
    else:
        sums = labellings.each(lambda start: labellings.values(start, energy.score).logsumexp(0))
        log_sum = reduce(torch.logaddexp, sums)
    _refuse_impossible(energy, log_sum)
    return log_sum


@overload
def marginals(energy: BipartiteEnergy, *, known: Tensor | None = None) -> BipartiteMarginals: ...
@overload
def marginals(energy: Energy, *, known: Tensor | None = None) -> Marginals: ...
@one_door
@torch.no_grad()
def marginals(energy: Energy, *, known: Known | None = None) -> Marginals | BipartiteMarginals:
    """Return P(y_i = 1) for every label, given ``known``, and the log partition of :func:`log_partition`.

    On the CPU with many labels, directed models without cliques are summed by a compiled kernel, and pairwise
    models by halves of the labels: 20 to 130 times as fast as summing labellings in turn
    (``scripts/bench/label_sums.py``).

    Args:
        energy: any energy over binary labels; a bipartite energy has marginals of the hidden units, too.
        known: {0, 1, NaN}, NaN for a free label; a known label's marginal is the known value.

    Raises:
        ValueError: see :func:`log_partition`.
    """
    if isinstance(energy, BipartiteEnergy):
        return _bipartite_marginals(OneSide.smaller(energy, known))
    labellings = _Labellings.of(energy, known)
    by_parts: Any = pairwise_enumeration if isinstance(energy, DirectedEnergy) else label_halves
    if (found := by_parts.marginals(energy, known)) is not None:
        return found

    def weighted_labels(labels: Tensor, weights: Tensor) -> Tensor:
        return torch.einsum("sb,sbi->bi", weights, labels.to(energy.dtype))

    log_sum, ones = _expectation(labellings, weighted_labels)
    _refuse_impossible(energy, log_sum)
    return Marginals(ones, log_sum, labellings.status())


def _bipartite_marginals(side: OneSide) -> BipartiteMarginals:
    labellings = _Labellings.of(side, side.known)
    log_sum, units = _expectation(labellings, side.expected_units)
    own, others = units.split([side.num_labels, side.num_others], dim=1)
    visible, hidden = side.visible_first(own.contiguous(), others.contiguous())
    return BipartiteMarginals(visible, hidden, log_sum, labellings.status())


@one_door
@torch.no_grad()
def pairwise_marginals(
    energy: BipartiteEnergy, *, known: Shaped[Tensor, "batch visible"] | None = None
) -> Float[Tensor, "batch visible hidden"]:
    """Return P(v_i = 1, h_j = 1) for every visible and hidden unit, given the ``known`` visible units.

    Args:
        energy: a bipartite energy.
        known: {0, 1, NaN}, NaN for a free visible unit.

    Raises:
        ValueError: see :func:`log_partition`.
    """
    side = OneSide.smaller(energy, known)
    _, products = _expectation(_Labellings.of(side, side.known), side.expected_products)
    joint = products.unflatten(1, (side.num_labels, side.num_others))
    return joint.mT.contiguous() if side.is_hidden else joint


def _expectation(
    labellings: _Labellings, weighted_sum: Callable[[Tensor, Tensor], Tensor]
) -> tuple[Float[Tensor, " batch"], Float[Tensor, "batch statistics"]]:
    """Return the log partition, and the expectation of a statistic of the labels with entries in [0, 1].

    ``weighted_sum`` takes labels and weights (labellings, batch), and returns the weighted sums of the
    statistic for each example.
    """
    energy = labellings.energy
    log_sum = torch.full((energy.batch_size,), -torch.inf, dtype=energy.dtype, device=energy.device)
    mean = torch.zeros(energy.batch_size, 1, dtype=energy.dtype, device=energy.device)
    for start in labellings.starts:
        scores = labellings.values(start, energy.score)
        so_far, log_sum = log_sum, torch.logaddexp(log_sum, scores.logsumexp(0))
        weights = (scores - log_sum).exp()
        labels = labellings.labels(labellings.numbers(start))
        mean = mean * (so_far - log_sum).exp()[:, None] + weighted_sum(labels, weights)
    # Rounding may raise a sum of probabilities above 1, so clamp.
    return log_sum, mean.clamp(max=1)


@one_door
def decode(energy: Energy, *, known: Known | None = None, top_k: int = 1) -> Decoding:
    """Return the labelling with the largest score (MAP), or the ``top_k`` best labellings.

    At ties, the labelling with the smallest number is returned (label 0 is the most significant bit), which
    has 0 in the first label that differs. For a bipartite energy, this holds for the smaller side.

    For pairwise energies with shared couplings on the CPU, without known labels, a compiled kernel needs
    about a ninth of the time at 14 labels; scores that differ by rounding may then count as ties.

    Args:
        energy: any energy over binary labels; for a bipartite energy the result is the joint MAP of both
            sides, and ``top_k`` is 1.
        known: {0, 1, NaN}, NaN for a free label; the answer keeps the known labels.
        top_k: the number of labellings to return, best first; the bound is then the last labelling's score.

    Raises:
        ValueError: see :func:`log_partition`; ``top_k`` is below 1 or above the number of an example's
            labellings.
    """
    if isinstance(energy, BipartiteEnergy):
        return _bipartite_decode(OneSide.smaller(energy, known), top_k)
    if known is None and top_k == 1 and isinstance(energy, PairwiseEnergy):
        best = pairwise_enumeration.decode(energy)
        if best is not None:
            return best
    return _decode(energy, known, top_k, energy.score)


@one_door
@torch.no_grad()
def sample(
    energy: Energy, num_samples: int, *, known: Known | None = None, generator: torch.Generator | None = None
) -> Int[Tensor, "num_samples batch labels"]:
    """Draw independent labellings from P(y), given ``known``.

    The labellings are enumerated twice: first to draw a chunk by the chunks' sums, then a labelling in it.

    Args:
        energy: any energy over binary labels; a bipartite energy's hidden units are summed out.
        num_samples: the number of draws for each example.
        known: {0, 1, NaN}, NaN for a free label.
        generator: the source of randomness, on the energy's device; by default torch's own.

    Raises:
        ValueError: see :func:`log_partition`; ``num_samples`` is below 1; the rules of a
            :class:`~lmbm_torch.energies.RestrictedEnergy` allow no labelling of an example.
    """
    check_count("num_samples", num_samples)
    if isinstance(energy, BipartiteEnergy):
        energy = OneSide.visible(energy, known)
    labellings = _Labellings.of(energy, known)
    chunks = [labellings.values(start, energy.score).logsumexp(0) for start in labellings.starts]
    sums = torch.stack(chunks, 1)
    # Refuse examples without an allowed labelling: the draws would be uniform over forbidden labellings.
    _refuse_impossible(energy, sums.amax(1))
    like = {"dtype": torch.float64, "device": energy.device, "generator": generator}
    uniform = torch.rand(2, energy.batch_size, num_samples, **like)
    chunk = _inverse(sums, uniform[0])
    numbers = torch.zeros_like(chunk)
    for index, start in enumerate(labellings.starts):
        if bool((chunk == index).any()):
            place = _inverse(labellings.values(start, energy.score).mT, uniform[1])
            numbers = torch.where(chunk == index, start + place, numbers)
    return labellings.labels(numbers.mT.contiguous())


def _refuse_impossible(
    energy: Energy, best: Tensor, what: str = "energy: expected at least one allowed labelling"
) -> None:
    """Raise ValueError if rules forbid a labelling with value ``best``, which marks forbidden labellings."""
    if isinstance(energy, RestrictedEnergy):
        is_impossible = best.detach() < torch.finfo(best.dtype).min / 2
        if bool(is_impossible.any()):
            raise ValueError(f"{what} for every example, got fewer for {int(is_impossible.sum())} examples")


def _inverse(log_weights: Tensor, uniform: Tensor) -> Tensor:
    """Draw an index for each uniform number by inverting the rows' cumulative sums; never one of weight 0."""
    sums = log_weights.double().softmax(1).cumsum(1)
    return torch.searchsorted(sums, uniform * sums[:, -1:], right=True)


def _bipartite_decode(side: OneSide, top_k: int) -> Decoding:
    if top_k != 1:
        raise ValueError(f"top_k: expected 1 for a bipartite energy, got {top_k}")
    best = _decode(side, side.known, top_k, side.best_score)
    visible, hidden = side.visible_first(best.labels, side.best_others(best.labels))
    return replace(best, labels=visible, hidden=hidden)


@one_door
def marginal_map(energy: BipartiteEnergy, *, known: Known | None = None) -> Decoding:
    """Return argmax_v log Σ_h exp(score(v, h)), the most probable visible labels with the hidden units summed
    out.

    The objective is −free_energy(v). Ties are broken as in :func:`decode`.

    Args:
        energy: a bipartite energy.
        known: {0, 1, NaN}, NaN for a free visible unit; the answer keeps the known units.

    Raises:
        ValueError: the energy has NaN or infinity; ``known`` has another shape than (batch, visible), or
            values except 0, 1 and NaN; an example has more than 2^22 visible labellings.
    """
    side = OneSide.visible(energy, known)
    return _decode(side, known, 1, side.score)


@one_door
def decode_hinge(
    energy: MarginEnergy, margin: float = 1.0, *, known: Known | None = None, top_k: int = 1
) -> Decoding:
    """Return the labelling with the least hinge loss Σ_i [margin − m_i]_+, or the ``top_k`` best labellings.

    The prediction rule of large_margin_boltzmann_machines_2009 (problem 3.4) and lmbm_and_lmsbn_2010
    (Equation 5). Ties are broken as in :func:`decode`.

    Args:
        energy: an energy with local margins m_i.
        margin: γ > 0, in units of the local fields.
        known: {0, 1, NaN}, NaN for a free label; hinge losses of known labels are part of the sum.
        top_k: the number of labellings to return, best first; the bound is then the last labelling's loss.

    Raises:
        ValueError: see :func:`decode`; the margin is not a finite number above 0.
    """
    check_positive("margin", margin)
    ones = torch.ones(energy.num_labels, dtype=energy.dtype, device=energy.device)

    def negative_hinge(labels: Tensor) -> Tensor:
        # A product with ones, because a sum over so short rows is slower.
        values = (energy.local_margins(labels) - margin).clamp_max_(0) @ ones
        if isinstance(energy, RestrictedEnergy):
            values = values.where(energy.allows(labels), torch.finfo(values.dtype).min)
        return values

    best = _decode(energy, known, top_k, negative_hinge)
    return Decoding(best.labels, best.objective.abs(), best.bound.abs(), best.status)


@torch.no_grad()
def _decode(
    energy: Energy, known: Tensor | None, top_k: int, objective: Callable[[Tensor], Tensor]
) -> Decoding:
    """Return the ``top_k`` labellings of largest ``objective``, which maps labels to (labellings, batch)."""
    labellings = _Labellings.of(energy, known)
    fewest = 2**labellings.fewest
    if not 1 <= top_k <= fewest:
        raise ValueError(f"top_k: expected 1 to {fewest}, the least number of labellings, got {top_k}")
    best = torch.empty(0, energy.batch_size, dtype=energy.dtype, device=energy.device)
    numbers = torch.empty(0, energy.batch_size, dtype=torch.int64, device=energy.device)
    for start in labellings.starts:
        values, rows = _largest(labellings.values(start, objective), top_k)
        best, kept = _largest(torch.cat([best, values]), top_k)
        numbers = torch.cat([numbers, rows + start]).gather(0, kept)
    labels, objectives = labellings.labels(numbers).transpose(0, 1), best.mT
    _refuse_impossible(energy, best[-1], f"top_k: expected {top_k} allowed labellings")
    if top_k == 1:
        labels, objectives = labels.squeeze(1), objectives.squeeze(1)
    return Decoding(labels.contiguous(), objectives.contiguous(), best[-1], labellings.status())


def _described(known: Tensor) -> tuple[Tensor, bool, int, int]:
    """Return the free labels, whether all examples know the same values, and the fewest and most free labels.

    Traced code cannot look at values, and assumes any number of free labels.
    """
    free = known.isnan()
    if is_traced():
        return free, False, 0, known.shape[1]
    counts = free.sum(1)
    foresee("fewest free labels", (known,), counts.min)
    foresee(MOST_FREE, (known,), counts.max)
    same = number("the same is known", (known,), lambda: (free & free[:1] | (known == known[:1])).all())
    fewest = number("fewest free labels", (known,), counts.min)
    return free, bool(same), int(fewest), int(number(MOST_FREE, (known,), counts.max))


def _largest(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the ``count`` largest values along the first axis, largest first, and the indices."""
    if count == 1:
        return values.max(0, keepdim=True)
    ordered, rows = values.sort(stable=True, dim=0, descending=True)
    return ordered[:count], rows[:count]


@dataclass(frozen=True)
class _Labellings:
    """Numbered labellings of an energy's examples that agree with the known labels.

    Args:
        energy: the energy.
        known: {0, 1, NaN}, or None; a single row if all examples have the same known values.
        num_free: the number of free labels of each row.
        shift: the position of each free label's bit in the number, counted from the lowest bit.
        chunk: the number of labellings that are computed together.
        fewest, most: the smallest and largest number of free labels of an example.
    """

    energy: Energy
    known: Shaped[Tensor, "rows labels"] | None
    num_free: Int[Tensor, " rows"]
    shift: Int[Tensor, "rows labels"]
    chunk: int
    fewest: int
    most: int

    @classmethod
    def of(cls, energy: Energy, known: Tensor | None) -> _Labellings:
        if isinstance(energy, ChainEnergy | SemiChainEnergy | TreeEnergy):
            raise TypeError(
                "energy: expected a kind with labels in {0, 1}, got "
                f"{type(energy).__name__}; chain_dp, semi_chain_dp and tree_dp take labels of several states"
            )
        energy.check_values()
        fewest = most = energy.num_labels
        if known is None:
            free = torch.ones(1, energy.num_labels, dtype=torch.bool, device=energy.device)
        else:
            check_known(known, energy.device, energy.batch_size, energy.num_labels)
            rows, same, fewest, most = _described(known)
            known = known[:1] if same else known
            free = rows[: len(known)]
        num_free = free.sum(-1)
        if most > LIMITS.enumerable:
            raise ValueError(
                f"energy: expected at most {LIMITS.enumerable} free labels in an example "
                f"(2^{LIMITS.enumerable} labellings), got {most}; for more, sampling.gibbs samples, and "
                "messages.mini_buckets bounds the log partition"
            )
        budget = CPU_CHUNK_BYTES if energy.device.type == "cpu" else DEVICE_CHUNK_BYTES
        width = energy.width if isinstance(energy, OneSide) else energy.num_labels
        per_labelling = energy.batch_size * width * energy.dtype.itemsize
        shift = num_free[:, None] - free.cumsum(-1)
        return cls(energy, known, num_free, shift, max(1, part_bytes(budget) // per_labelling), fewest, most)

    @property
    def starts(self) -> range:
        """Return the number of the first labelling of each chunk."""
        return range(0, 2**self.most, self.chunk)

    def numbers(self, start: int) -> Int[Tensor, "chunk 1"]:
        """Return the numbers of the labellings in a chunk, as a column."""
        stop = min(start + self.chunk, self.starts.stop)
        return torch.arange(start, stop, device=self.shift.device)[:, None]

    def labels(self, numbers: Int[Tensor, "chunk _columns"]) -> Int[Tensor, "chunk _rows labels"]:
        """Return the labellings with these numbers; one row for the whole batch if all rows are equal."""
        return clamp((numbers[..., None] >> self.shift) & 1, self.known)

    def values(self, start: int, objective: Callable[[Tensor], Tensor]) -> Float[Tensor, "chunk batch"]:
        """Return ``objective`` for the labellings of a chunk; the least finite number for numbers beyond an
        example's last labelling.
        """
        numbers = self.numbers(start)
        values = objective(self.labels(numbers))
        if self.known is None:
            return values
        # −∞ would make the gradient of logsumexp NaN for a chunk that has no labelling of an example.
        return values.where(numbers < 2**self.num_free, torch.finfo(values.dtype).min)

    def each(self, part: Callable[[int], Tensor]) -> Iterator[Tensor]:
        """Yield ``part`` of each chunk, differentiable; with several, the backward pass recomputes them."""
        if len(self.starts) == 1:
            return map(part, self.starts)
        # Import here, because the import loads torch's compiler, which takes seconds.
        from torch.utils.checkpoint import checkpoint

        return (checkpoint(part, start, use_reentrant=False) for start in self.starts)

    def status(self) -> Status:
        return Status.certain(self.energy, 2**self.num_free)
