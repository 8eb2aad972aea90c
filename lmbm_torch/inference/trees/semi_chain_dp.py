"""Exact inference in semi-Markov chains by dynamic programming over the ends of segments.

Source: Sarawagi and Cohen, "Semi-Markov conditional random fields for information extraction", NIPS 2004.
Each step computes one position of the whole batch, for all lengths and states of a segment, in float64. Only
messages (batch, length, states) are stored, not a table of all segments.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from lmbm_torch.energies.chain import PADDING
from lmbm_torch.energies.first_order import first_order
from lmbm_torch.energies.semi_chain import CONTINUED, SemiChainEnergy
from lmbm_torch.inference.common.results import Decoding, StateMarginals, Status
from lmbm_torch.shapes import Float, Int
from lmbm_torch.verdicts import one_door, refuse_unless

__all__ = ["decode", "log_partition", "marginals"]


@one_door
def log_partition(energy: SemiChainEnergy) -> Float[Tensor, " batch"]:
    """Return log Σ exp(score) over all segmentations; the gradient is the marginals, differentiable once.

    Args:
        energy: chains in float32 or float64, on any device.

    Raises:
        ValueError: NaN or +∞ in the energy; all segmentations of a chain are forbidden.
    """
    energy = first_order(energy, "semi_chain_dp.log_partition")
    energy.check_values()
    tensors = energy.unary, energy.transition, energy.durations, energy.segments
    return _LogPartition.apply(*tensors, energy)


@one_door
@torch.no_grad()
def marginals(energy: SemiChainEnergy) -> StateMarginals:
    """Return P(the segment that contains position t has state s) by forward–backward, and the log partition.

    Args:
        energy: see :func:`log_partition`. The probability of a segment is the gradient of
            :func:`log_partition` with respect to ``segments``.

    Raises:
        ValueError: see :func:`log_partition`.
    """
    energy.check_values()
    messages = _Messages.of(energy)
    states = _expected(energy, messages, torch.ones_like(messages.log_partition))[0]
    status = Status.certain(energy, energy.lengths)
    return StateMarginals(states.to(energy.dtype), status, messages.log_partition.to(energy.dtype))


@one_door
@torch.no_grad()
def decode(energy: SemiChainEnergy) -> Decoding:
    """Return the segmentation with the largest score (MAP), coded as in :class:`SemiChainEnergy`.

    Of equally good segmentations any may be returned.

    Args:
        energy: see :func:`log_partition`.

    Raises:
        ValueError: see :func:`log_partition`.
    """
    energy.check_values()
    batch, length, states = energy.unary.shape
    fine, most = _Potentials(energy), energy.max_segment
    # For each position and state of the last segment: the best score up to there, and this segment's length.
    ends = fine.unary.new_full((batch, length + 1, states), -torch.inf)
    sizes = torch.zeros(ends.shape, dtype=torch.int32, device=ends.device)
    before = torch.zeros(batch, states, dtype=torch.float64, device=ends.device)
    origins = torch.zeros_like(sizes)
    for t, own in _own_scores(fine):
        if t:
            before, origin = (ends[:, t, :, None] + fine.transition).max(1)
            origins[:, t] = origin.int()
        reached, values = ends[:, t + 1 : t + most + 1], before[:, None] + own
        is_better = values > reached
        reached[is_better] = values[is_better]
        size = torch.arange(1, own.shape[1] + 1, dtype=torch.int32, device=ends.device)[:, None]
        sizes[:, t + 1 : t + most + 1] = size.where(is_better, sizes[:, t + 1 : t + most + 1])
    last = ends.take_along_dim(energy.lengths[:, None, None], 1)[:, 0]
    _refuse_impossible(last.amax(-1))
    labels = _traced(last.argmax(-1), sizes, origins, energy.lengths)
    objective = energy.score(labels)
    return Decoding(labels, objective, objective.clone(), Status.certain(energy, energy.lengths))


def _traced(last: Tensor, sizes: Tensor, origins: Tensor, lengths: Tensor) -> Int[Tensor, "batch length"]:
    """Trace each chain back from the state of the last segment; return the labels."""
    found = torch.full(sizes.shape[:2], CONTINUED, dtype=torch.int64, device="cpu")[:, 1:]
    tables = sizes.cpu(), origins.cpu()
    for row, (state, end) in enumerate(zip(last.tolist(), lengths.tolist(), strict=True)):
        found[row, end:] = PADDING
        while end:
            start = end - int(tables[0][row, end, state])
            found[row, start] = state
            state, end = int(tables[1][row, start, state]), start
    return found.to(sizes.device)


@dataclass(frozen=True)
class _Messages:
    """Log-sums over the segmentations before or after each position, in float64.

    Args:
        before: sums up to each position, by the state of the next segment.
        ends: sums up to each position, by the state of the last segment, (batch, length + 1, states).
        begins: sums from each position on, by the state of the first segment.
        after: sums from each position on, by the state of the segment before, (batch, length + 1, states).
        log_partition: the log-sum over all segmentations.
    """

    before: Float[Tensor, "batch length states"]
    ends: Float[Tensor, "batch _ states"]
    begins: Float[Tensor, "batch length states"]
    after: Float[Tensor, "batch _ states"]
    log_partition: Float[Tensor, " batch"]

    @classmethod
    def of(cls, energy: SemiChainEnergy) -> _Messages:
        """Compute the messages of an energy from both sides.

        Raises:
            ValueError: all segmentations of a chain are forbidden.
        """
        before, ends, total = _forward(energy)
        fine = _Potentials(energy)
        begins, after = torch.full_like(before, -torch.inf), torch.full_like(ends, -torch.inf)
        rows = torch.arange(len(before), device=before.device)
        after[rows, energy.lengths] = 0
        for t, own in _own_scores(fine, reverse=True):
            begins[:, t] = (own + after[:, t + 1 : t + own.shape[1] + 1]).logsumexp(1)
            into = (fine.transition + begins[:, t, None]).logsumexp(-1)
            after[:, t] = into.where((t < energy.lengths)[:, None], after[:, t])
        return cls(before, ends, begins, after, total)


def _forward(energy: SemiChainEnergy) -> tuple[Tensor, Tensor, Tensor]:
    """Return the forward messages ``before`` and ``ends`` of :class:`_Messages`, and the log partition."""
    fine, (batch, length, states) = _Potentials(energy), energy.unary.shape
    before = fine.unary.new_zeros(batch, length, states)
    ends = fine.unary.new_full((batch, length + 1, states), -torch.inf)
    for t, own in _own_scores(fine):
        if t:
            before[:, t] = (ends[:, t, :, None] + fine.transition).logsumexp(1)
        reached = ends[:, t + 1 : t + own.shape[1] + 1]
        torch.logaddexp(reached, before[:, t, None] + own, out=reached)
    total = ends.take_along_dim(energy.lengths[:, None, None], 1)[:, 0].logsumexp(-1)
    _refuse_impossible(total)
    return before, ends, total


def _expected(
    energy: SemiChainEnergy, messages: _Messages, weight: Tensor, by_segment: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return expected counts of states at positions, of transitions, and of lengths, with a weight per chain.

    Args:
        weight: (batch,), the weight of each chain.
        by_segment: (batch, length, max_segment, states), filled with weighted probabilities of segments.
    """
    fine, (batch, length, states) = _Potentials(energy), energy.unary.shape
    changes = fine.unary.new_zeros(batch, length + 1, states)
    durations, pairs = torch.zeros_like(fine.durations), torch.zeros_like(fine.transition)
    total = messages.log_partition[:, None, None]
    for t, own in _own_scores(fine):
        size = own.shape[1]
        logs = messages.before[:, t, None] + own + messages.after[:, t + 1 : t + size + 1]
        share = (logs - total).exp() * weight[:, None, None]
        changes[:, t] += share.sum(1)
        changes[:, t + 1 : t + size + 1] -= share
        durations[:size] += share.sum(0)
        if by_segment is not None:
            by_segment[:, t, :size] = share
        if t:
            joint = messages.ends[:, t, :, None] + fine.transition + messages.begins[:, t, None] - total
            pairs += (joint.exp() * weight[:, None, None]).sum(0)
    nodes = changes[:, :-1].cumsum(1).masked_fill(~energy.inside[..., None], 0)
    return nodes, pairs, durations


class _Potentials:
    """Log-potentials of an energy in float64, 0 in padding; those of segments are converted when needed."""

    def __init__(self, energy: SemiChainEnergy) -> None:
        self.unary = energy.unary.detach().masked_fill(~energy.inside[..., None], 0).double()
        self.transition = energy.transition.detach().double()
        self.durations = energy.durations.detach().double()
        self.segments = None if energy.segments is None else energy.segments.detach()
        self.lengths = energy.lengths


def _own_scores(fine: _Potentials, *, reverse: bool = False) -> Iterator[tuple[int, Tensor]]:
    """Yield each position with the scores of all segments that begin there, (batch, lengths, states).

    Segments beyond a chain's end have −∞.
    """
    length, most = fine.unary.shape[1], len(fine.durations)
    for t in reversed(range(length)) if reverse else range(length):
        size = min(most, length - t)
        own = fine.unary[:, t : t + size].cumsum(1) + fine.durations[:size]
        if fine.segments is not None:
            own = own + fine.segments[:, t, :size]
        end = torch.arange(t + 1, t + size + 1, device=own.device)
        yield t, own.masked_fill((end > fine.lengths[:, None])[..., None], -torch.inf)


def _refuse_impossible(total: Tensor) -> None:
    what = "energy: expected an allowed segmentation of each chain"

    def refuse() -> None:
        rows = (total == -torch.inf).nonzero().flatten()
        raise ValueError(f"{what}, got none for {len(rows)} chains, the first in row {int(rows[0])}")

    refuse_unless(what, (total,), lambda: (total > -torch.inf).all(), refuse)


class _LogPartition(torch.autograd.Function):
    """Log partition of semi-Markov chains as a function whose gradients are expected counts."""

    @staticmethod
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]  # torch: any arguments
        ctx: Any,
        unary: Tensor,
        transition: Tensor,
        durations: Tensor,
        segments: Tensor | None,
        energy: SemiChainEnergy,
    ) -> Tensor:
        ctx.save_for_backward(unary, transition, durations, segments)
        ctx.energy = energy
        return _forward(energy)[2].to(unary.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        energy, weight = ctx.energy, gradients[0].double()
        by_segment = None if energy.segments is None else torch.zeros_like(energy.segments)
        found = _expected(energy, _Messages.of(energy), weight, by_segment)
        return *(each.to(energy.dtype) for each in found), by_segment, None
