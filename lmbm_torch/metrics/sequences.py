"""Metrics of labelled sequences: for whole sequences, and for chunks such as the phrases of a sentence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from lmbm_torch.checks import check_shape
from lmbm_torch.energies.chain import PADDING
from lmbm_torch.metrics.chunks import chunks, is_chunk_tag
from lmbm_torch.metrics.classes import Sums
from lmbm_torch.shapes import Bool, Float, Int


def sequence_accuracy(preds: Int[Tensor, "batch length"], target: Int[Tensor, "batch length"]) -> float:
    """Return the share of sequences whose labels are all predicted right.

    Args:
        preds: predicted class indices; values after the end of a sequence are ignored.
        target: true class indices; ``PADDING`` (−1) after the end of a sequence.

    Raises:
        ValueError: shapes differ, or a sequence has no label.

    Examples:
        >>> import torch
        >>> from lmbm_torch.metrics import sequence_accuracy
        >>> sequence_accuracy(torch.tensor([[0, 1, 2], [1, 1, 0]]), torch.tensor([[0, 1, 2], [1, 2, -1]]))
        0.5
    """
    return float(SequenceAccuracy()(preds, target))


def chunk_f1(
    preds: Int[Tensor, "batch length"], target: Int[Tensor, "batch length"], label_names: Sequence[str]
) -> float:
    """Return F1 of chunks; a chunk is right if the type, the first and the last position are right.

    Chunks are those of the CoNLL-2000 shared task, see :func:`~lmbm_torch.metrics.chunks.chunks`. If there is
    no chunk, F1 is 0.

    Args:
        preds, target: see :func:`sequence_accuracy`.
        label_names: a tag for each class, such as ``B-NP``, ``I-NP`` and ``O``.

    Raises:
        ValueError: see :func:`sequence_accuracy`; also if names have another form, or a class has no name.

    Examples:
        >>> import torch
        >>> from lmbm_torch.metrics import chunk_f1
        >>> chunk_f1(torch.tensor([[0, 1, 2]]), torch.tensor([[0, 1, 2]]), ["B-NP", "I-NP", "O"])
        1.0
    """
    return float(ChunkF1(label_names)(preds, target))


class SequenceAccuracy(Sums):
    """The metric :func:`sequence_accuracy`, accumulated over batches.

    Examples:
        >>> import torch
        >>> from lmbm_torch.metrics.sequences import SequenceAccuracy
        >>> SequenceAccuracy()(torch.tensor([[0, 1, 2], [1, 1, 0]]), torch.tensor([[0, 1, 2], [1, 2, -1]]))
        tensor(0.5000)
    """

    sums = ("right", "count")
    right: Tensor
    count: Tensor

    def update(self, preds: Int[Tensor, "batch length"], target: Int[Tensor, "batch length"]) -> None:
        inside = _inside(preds, target)
        self.right += ((preds == target) | ~inside).all(1).sum()
        self.count += len(target)

    def compute(self) -> Float[Tensor, ""]:
        return self.right / self.count


class ChunkF1(Sums):
    """The metric :func:`chunk_f1`, accumulated over batches.

    Args:
        label_names: a tag for each class, such as ``B-NP``, ``I-NP`` and ``O``.

    Raises:
        ValueError: a name has another form.

    Examples:
        >>> import torch
        >>> from lmbm_torch.metrics.sequences import ChunkF1
        >>> ChunkF1(["B-NP", "I-NP", "O"])(torch.tensor([[0, 1, 2]]), torch.tensor([[0, 1, 2]]))
        tensor(1.)
    """

    sums = ("right", "predicted", "present")
    right: Tensor
    predicted: Tensor
    present: Tensor

    def __init__(self, label_names: Sequence[str], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if strange := [name for name in label_names if not is_chunk_tag(name)]:
            raise ValueError(f"label_names: expected O, B-type, I-type, E-type or S-type, got {strange}")
        self.label_names = tuple(label_names)

    def update(self, preds: Int[Tensor, "batch length"], target: Int[Tensor, "batch length"]) -> None:
        inside = _inside(preds, target)
        found, truth = self._chunks("preds", preds, inside), self._chunks("target", target, inside)
        self.right += len(found & truth)
        self.predicted += len(found)
        self.present += len(truth)

    def compute(self) -> Float[Tensor, ""]:
        return 2 * self.right / (self.predicted + self.present).clamp(min=1)

    def _chunks(
        self, name: str, labels: Int[Tensor, "batch length"], inside: Bool[Tensor, "batch length"]
    ) -> set[tuple[int, int, int, str]]:
        """Return the set of chunks, each as (sequence, first position, last position, type)."""
        chosen = labels[inside]
        if not bool(((chosen >= 0) & (chosen < len(self.label_names))).all()):
            raise ValueError(f"{name}: expected classes 0 to {len(self.label_names) - 1}, got other values")
        sequences = (row[own].tolist() for row, own in zip(labels.cpu(), inside.cpu(), strict=True))
        return {
            (number, *chunk)
            for number, sequence in enumerate(sequences)
            for chunk in chunks([self.label_names[label] for label in sequence])
        }


def _inside(preds: Tensor, target: Tensor) -> Bool[Tensor, "batch length"]:
    """Return which entries are labels, not padding; raise the errors of :func:`sequence_accuracy`."""
    check_shape("preds", preds, None, None)
    check_shape("target", target, *preds.shape)
    inside = target != PADDING
    if not bool(inside.any(1).all()):
        raise ValueError("target: expected a label in every sequence, got a sequence without labels")
    return inside
