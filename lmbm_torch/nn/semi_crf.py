"""A semi-Markov conditional random field as the last layer of a neural network."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from lmbm_torch.checks import check_counts, check_shape
from lmbm_torch.energies.chain import PADDING
from lmbm_torch.energies.semi_chain import CONTINUED, SemiChainEnergy
from lmbm_torch.inference.trees import semi_chain_dp
from lmbm_torch.nn.crf import Reduction, reduced
from lmbm_torch.shapes import Float, Int
from lmbm_torch.verdicts import one_door

__all__ = ["SemiCRF"]

Segment = tuple[int, int, int]


class SemiCRF(nn.Module):
    """A layer that scores segmentations by emissions, lengths of segments, and transitions between tags.

    :class:`~lmbm_torch.energies.SemiChainEnergy` defines the score and the coding of segmentations; P ∝
    exp(score). The log-likelihood, gradients and decoding are exact.

    Args:
        num_tags: the number of tags.
        max_segment: the number of tokens of the longest segment.

    Raises:
        ValueError: ``num_tags`` or ``max_segment`` is below 1.

    Examples:
        >>> import torch
        >>> from lmbm_torch.nn import SemiCRF
        >>> crf = SemiCRF(2, max_segment=2)
        >>> _ = [torch.nn.init.zeros_(parameter) for parameter in crf.parameters()]
        >>> crf.decode(torch.tensor([[[1.0, 0.0], [0.0, 2.0]]]))
        [[(0, 1, 0), (1, 2, 1)]]
    """

    def __init__(self, num_tags: int, max_segment: int) -> None:
        super().__init__()
        check_counts(num_tags=num_tags, max_segment=max_segment)
        self.num_tags, self.max_segment = num_tags, max_segment
        self.transitions = nn.Parameter(torch.empty(num_tags, num_tags))
        self.durations = nn.Parameter(torch.empty(max_segment, num_tags))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw all parameters from the uniform distribution over −0.1 to 0.1."""
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -0.1, 0.1)

    def extra_repr(self) -> str:
        return f"num_tags={self.num_tags}, max_segment={self.max_segment}"

    def energy(
        self,
        emissions: Float[Tensor, "batch length tags"],
        lengths: Int[Tensor, " batch"] | Sequence[int] | None = None,
        segments: Float[Tensor, "batch length max_segment tags"] | None = None,
    ) -> SemiChainEnergy:
        """Return the energy of a batch.

        Args:
            emissions: log-potentials of the tags of each token.
            lengths: number of tokens of each sequence; by default, all tokens are used.
            segments: additional log-potentials by first token, length − 1 and tag of a segment.

        Raises:
            ValueError: shapes of the tensors do not fit, or lengths are out of range.
        """
        check_shape("emissions", emissions, None, None, self.num_tags)
        dtype = torch.float64 if emissions.dtype == torch.float64 else torch.float32
        transition, durations = self.transitions.to(dtype), self.durations.to(dtype)
        more = None if segments is None else segments.to(dtype)
        return SemiChainEnergy(emissions.to(dtype), transition, durations, more, lengths)

    @one_door
    def forward(
        self,
        emissions: Float[Tensor, "batch length tags"],
        labels: Int[Tensor, "batch length"],
        lengths: Int[Tensor, " batch"] | Sequence[int] | None = None,
        reduction: Reduction = "sum",
        *,
        segments: Float[Tensor, "batch length max_segment tags"] | None = None,
    ) -> Tensor:
        """Return the log-likelihood of segmentations; the loss to minimise is minus the log-likelihood.

        Args:
            emissions, lengths, segments: see :meth:`energy`.
            labels: the tag at the first token of each segment and −2 at its other tokens, see :meth:`coded`.
            reduction: see :meth:`lmbm_torch.nn.CRF.forward`.

        Raises:
            ValueError: see :meth:`energy`; also if labels are no segmentation, or the reduction is unknown.
        """
        energy = self.energy(emissions, lengths, segments)
        logs = energy.score(labels) - semi_chain_dp.log_partition(energy)
        return reduced(logs, energy.lengths, reduction)

    def decode(
        self,
        emissions: Float[Tensor, "batch length tags"],
        lengths: Int[Tensor, " batch"] | Sequence[int] | None = None,
        *,
        segments: Float[Tensor, "batch length max_segment tags"] | None = None,
    ) -> list[list[Segment]]:
        """Return the most probable segments of each sequence, as (first token, token after the last, tag).

        Args:
            emissions, lengths, segments: see :meth:`energy`.
        """
        labels = semi_chain_dp.decode(self.energy(emissions, lengths, segments)).labels.tolist()
        found = []
        for row in labels:
            tokens = [tag for tag in row if tag != PADDING]
            starts = [place for place, tag in enumerate(tokens) if tag != CONTINUED]
            ends = [*starts[1:], len(tokens)]
            found.append([(start, end, row[start]) for start, end in zip(starts, ends, strict=True)])
        return found

    @staticmethod
    def coded(sequences: Sequence[Iterable[Segment]], length: int) -> Int[Tensor, "batch length"]:
        """Convert lists of segments, in the form of :meth:`decode`, to labels.

        Args:
            sequences: for each sequence the segments in order, without gaps, from token 0 on.
            length: number of labels for each sequence, with padding.

        Raises:
            ValueError: segments leave gaps, have no token, or end after ``length``.
        """
        labels = torch.full((len(sequences), length), PADDING, dtype=torch.int64, device="cpu")
        for row, segments in enumerate(sequences):
            place = 0
            for start, end, tag in segments:
                if start != place or not start < end <= length:
                    raise ValueError(
                        f"sequences: expected a segment that starts at token {place}, got {(start, end, tag)}"
                    )
                labels[row, start:end] = CONTINUED
                labels[row, start] = tag
                place = end
        return labels
