"""Random semi-Markov chains, and enumeration of the segmentations of a chain."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from lmbm_torch.energies import SemiChainEnergy
from lmbm_torch.energies.chain import PADDING
from lmbm_torch.energies.semi_chain import CONTINUED


def random_semi_chain_energy(
    seed: int,
    length: int = 5,
    num_states: int = 2,
    max_segment: int = 3,
    batch_size: int = 4,
    *,
    scale: float = 1.0,
    has_segments: bool = True,
    forbidden: float = 0.0,
) -> SemiChainEnergy:
    """Chains with NaN for padding, the same for the same arguments; state 0 is always allowed."""
    generator = torch.Generator().manual_seed(seed)

    def log_potentials(*shape: int) -> torch.Tensor:
        excluded = torch.rand(shape, generator=generator) < forbidden
        excluded[..., 0] = False
        values = torch.randn(shape, generator=generator, dtype=torch.float64)
        return (scale * values).masked_fill(excluded, -torch.inf)

    lengths = torch.randint(1, length + 1, (batch_size,), generator=generator)
    unary = log_potentials(batch_size, length, num_states)
    unary[torch.arange(length) >= lengths[:, None]] = torch.nan
    tables = log_potentials(num_states, num_states), log_potentials(max_segment, num_states)
    segments = log_potentials(batch_size, length, max_segment, num_states) if has_segments else None
    energy = SemiChainEnergy(unary, *tables, segments, lengths)
    if segments is not None:
        segments[~energy.fits] = torch.nan
    return energy


def segmentations(length: int, max_segment: int, num_states: int) -> Iterator[list[tuple[int, int, int]]]:
    """Yield every list of segments (first position, end, state)."""
    if length == 0:
        yield []
    for size in range(1, min(length, max_segment) + 1):
        for before in segmentations(length - size, max_segment, num_states):
            for state in range(num_states):
                yield [*before, (length - size, length, state)]


def coded(segments: list[tuple[int, int, int]], length: int) -> list[int]:
    """The labels of segments, with padding up to ``length``."""
    labels = [PADDING] * length
    for start, end, state in segments:
        labels[start:end] = [state] + [CONTINUED] * (end - start - 1)
    return labels


def plain_score(energy: SemiChainEnergy, row: int, segments: list[tuple[int, int, int]]) -> torch.Tensor:
    """The score of a segmentation, segment by segment."""
    total = torch.zeros((), dtype=torch.float64)
    for number, (start, end, state) in enumerate(segments):
        total = total + energy.unary[row, start:end, state].sum() + energy.durations[end - start - 1, state]
        if energy.segments is not None:
            total = total + energy.segments[row, start, end - start - 1, state]
        if number:
            total = total + energy.transition[segments[number - 1][2], state]
    return total


def with_segment_states_renamed(energy: SemiChainEnergy, order: torch.Tensor) -> SemiChainEnergy:
    """The same chains with state ``order[i]`` renamed to i."""
    segments = None if energy.segments is None else energy.segments[..., order]
    return SemiChainEnergy(
        energy.unary[..., order],
        energy.transition[order][:, order],
        energy.durations[..., order],
        segments,
        energy.lengths,
    )
