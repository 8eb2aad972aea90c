"""Semi-Markov chains: sequences cut into labelled segments, which depend on the segment before."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from lmbm_torch.checks import check_like, check_log_potentials, check_magnitude, check_shape
from lmbm_torch.energies.base import StateEnergy, check_precision, kept
from lmbm_torch.energies.chain import as_lengths, check_lengths, in_float
from lmbm_torch.shapes import Bool, Float, Int, Scores, Shaped
from lmbm_torch.verdicts import refuse_unless

# Label of positions within a segment after the first position.
CONTINUED = -2


@dataclass(frozen=True)
class SemiChainEnergy(StateEnergy):
    """A batch of semi-Markov chains: labellings are segmentations with a state for each segment.

        score = Σ_segments [durations_{size − 1}(s) + segments_{start, size − 1}(s) + Σ_t unary_t(s)]
                + Σ_neighbours transition(s, next s)

    and p ∝ exp(score) (Sarawagi and Cohen, "Semi-Markov conditional random fields for information
    extraction", NIPS 2004). A segment has 1 to max_segment positions. Neighbours may have equal states; a
    transition of −∞ from a state to itself forbids neighbours with equal states. A labelling is the state at
    the first position of each segment, ``CONTINUED`` (−2) at all other positions, and ``PADDING`` (−1) beyond
    a chain's end.

    Args:
        unary: log-potentials of the states at each position of a segment.
        transition: row r, column s: from a segment of state r to the next segment of state s.
        durations: log-potentials of a segment's length, 1 to max_segment, for each state; −∞ forbids.
        segments: optional log-potentials of segments by first position, length and state; values of segments
            beyond a chain's end are never read.
        lengths: the number of positions of each chain, as in :class:`~lmbm_torch.energies.ChainEnergy`.

    Raises:
        ValueError: a tensor has a wrong shape, dtype or device; lengths are out of range.

    Examples:
        >>> import torch
        >>> from lmbm_torch.energies import SemiChainEnergy
        >>> from lmbm_torch.inference import decode
        >>> unary = torch.tensor([[[1.0, 0.0], [1.0, 0.0], [0.0, 3.0]]])
        >>> decode(SemiChainEnergy(unary, torch.zeros(2, 2), torch.tensor([[0.0, 0.0], [1.0, 1.0]]))).labels
        tensor([[ 0, -2,  1]])
    """

    PER_EXAMPLE: ClassVar = {"unary": 3, "segments": 4, "lengths": 1}

    unary: Float[Tensor, "batch length states"]
    transition: Float[Tensor, "states states"]
    durations: Float[Tensor, "max_segment states"]
    segments: Float[Tensor, "batch length max_segment states"] | None = None
    lengths: Int[Tensor, " batch"] | Any = None

    def __post_init__(self) -> None:
        in_float(self, "unary", "transition", "durations", "segments")
        self._check_first()
        batch, length, states = self.unary.shape
        check_shape("transition", self.transition, states, states)
        check_shape("durations", self.durations, None, states)
        if self.segments is not None:
            check_shape("segments", self.segments, batch, length, self.max_segment, states)
        for name in ("transition", "durations", "segments"):
            if getattr(self, name) is not None:
                check_like(name, getattr(self, name), "unary", self.unary)
        object.__setattr__(self, "lengths", as_lengths(self.lengths, self.unary))
        self._check_index("lengths", self.lengths, batch)
        check_lengths(self.lengths, length)

    @property
    def max_segment(self) -> int:
        """Return the number of positions of the longest possible segment."""
        return self.durations.shape[0]

    @kept
    def inside(self) -> Bool[Tensor, "batch length"]:
        """Return a mask that is true up to each chain's end."""
        return torch.arange(self.num_labels, device=self.device) < self.lengths[:, None]

    def check_values(self) -> None:
        """Raise ValueError for NaN, +∞, extremely large or half-precision values, except in padding."""
        check_precision(self.dtype)
        tables = {"transition": self.transition, "durations": self.durations}
        tables["unary"] = self.unary.masked_fill(~self.inside[..., None], 0)
        if self.segments is not None:
            tables["segments"] = self.segments.masked_fill(~self.fits[..., None], 0)
        for name, values in tables.items():
            check_log_potentials(name, values)
            check_magnitude(name, values)

    @property
    def fits(self) -> Bool[Tensor, "batch length max_segment"]:
        """Return a mask: whether a segment with this first position and length ends within the chain."""
        ends = torch.arange(self.num_labels, device=self.device)[:, None] + torch.arange(
            1, self.max_segment + 1, device=self.device
        )
        return ends <= self.lengths[:, None, None]

    def score(self, labels: Shaped[Tensor, "*samples #batch length"]) -> Scores:
        """Return the score of segmentations; −∞ for a forbidden segmentation.

        Raises:
            ValueError: a label inside a chain is neither a state nor ``CONTINUED``, a chain begins with
                ``CONTINUED``, or a segment is longer than ``max_segment``.
        """
        place = torch.arange(self.num_labels, device=self.device)
        labels = labels.long().expand(*labels.shape[:-2], *self.inside.shape)
        begins = self.inside & (labels != CONTINUED)
        self._check_states(
            begins & ((labels < 0) | (labels >= self.num_states)), " or −2 up to each chain's end"
        )
        first = place.where(begins, -1).cummax(-1).values
        # For each position: the first position of this or the next segment, or the chain's end.
        later = place.where(begins, self.num_labels).flip(-1).cummin(-1).values.flip(-1)
        after = torch.cat([later[..., 1:], torch.full_like(later[..., :1], self.num_labels)], -1)
        size = torch.minimum(after, self.lengths[:, None]) - place
        wrong = (begins & (size > self.max_segment)) | (self.inside & (first < 0))
        wanted = f"labels: expected segments of 1 to {self.max_segment} positions, the first at position 0"

        def refuse() -> None:
            raise ValueError(f"{wanted}, got {int(wrong.sum())} segments that are too long or begin too late")

        refuse_unless(wanted, (wrong,), lambda: ~wrong.any(), refuse)
        states = labels.gather(-1, first.clamp(min=0)).where(self.inside, 0).clamp(0, self.num_states - 1)
        size = (size - 1).where(begins, 0).clamp(0, self.max_segment - 1)
        total = self._unary_scores(states).where(self.inside, 0).sum(-1)
        total = total + self.durations[size, states].where(begins, 0).sum(-1)
        steps = self.transition[states[..., :-1], states[..., 1:]].where(begins[..., 1:], 0)
        if self.segments is not None:
            flat = self.segments.flatten(-2).expand(*states.shape, -1)
            own = flat.gather(-1, (size * self.num_states + states)[..., None]).squeeze(-1)
            total = total + own.where(begins, 0).sum(-1)
        return total + steps.sum(-1)
