"""Metrics of labelled sequences: for whole sequences, and for chunks such as the phrases of a sentence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from lmbm_torch.checks import check_shape
from lmbm_torch.energies.chain import PADDING
from lmbm_torch.metrics.classes import Sums
from lmbm_torch.shapes import Bool, Float, Int

Tags = Sequence[Sequence[str]]


class ChunkConfusion(NamedTuple):
    """The number of chunks for each true type (row) and each predicted type (column).

    Args:
        types: names of the rows and columns: the types, then ``"O"``. Row ``"O"`` is for predicted chunks at
            positions without a true chunk; column ``"O"`` is for true chunks that are not predicted.
        counts: the number of chunks, (types, types).
    """

    types: tuple[str, ...]
    counts: Int[np.ndarray, "types types"]


def chunks(tags: Sequence[str]) -> Iterator[tuple[int, int, str]]:
    """Yield first position, last position and type of each chunk in a sequence of tags.

    Chunks are defined as in the CoNLL-2000 shared task, for BIO, IOB1 and BIOES: a chunk begins with B or S,
    or with an I or E that does not continue a chunk of the same type; a chunk ends after E or S.
    """
    first, kind, is_closed = 0, "", False
    for place, tag in enumerate([*tags, "O"]):
        prefix = tag[:1]
        goes_on = bool(kind) and not is_closed and prefix in ("I", "E") and tag[2:] == kind
        if kind and not goes_on:
            yield first, place - 1, kind
        if not goes_on:
            first, kind = place, tag[2:]
        is_closed = prefix in ("E", "S")


def chunk_report(true: Tags, predicted: Tags) -> dict[str, dict[str, float]]:
    """Return precision, recall and F1 of chunks, for each type and on average, with the values of seqeval.

    A predicted chunk is right if the type, the first and the last position are right, see :func:`chunks`. A
    ratio with denominator 0 is replaced by 0.

    Args:
        true: tags of each sequence: ``"O"``, or a prefix of B, I, E and S, a hyphen and a type.
        predicted: tags of the same lengths.

    Returns:
        For each type in alphabetical order, and for ``"micro avg"``, ``"macro avg"`` and ``"weighted avg"``
        (weighted by the number of true chunks), a dictionary of ``"precision"``, ``"recall"``, ``"f1-score"``
        and ``"support"``, the number of true chunks.

    Raises:
        ValueError: a tag is not of the form above, lengths differ, or no sequence has a true chunk.

    Examples:
        >>> from lmbm_torch.metrics import chunk_report
        >>> chunk_report([["B-a", "I-a", "O", "B-b"]], [["B-a", "I-a", "O", "B-a"]])["micro avg"]["f1-score"]
        0.5
    """
    truth, found = _all_chunks(true, predicted)
    types = sorted({kind for *_, kind in truth | found})
    if not types:
        raise ValueError("true: expected at least one chunk in all sequences, got only the tag O")
    right, given, wanted = (Counter(kind for *_, kind in each) for each in (truth & found, found, truth))
    report = {kind: _shares(right[kind], given[kind], wanted[kind]) for kind in types}
    rows = list(report.values())
    averages = {"micro avg": _shares(right.total(), given.total(), wanted.total())}
    for name, weights in (("macro avg", None), ("weighted avg", [row["support"] for row in rows])):
        if weights is not None and not sum(weights):
            weights = None
        columns = {
            key: float(np.average([row[key] for row in rows], weights=weights))
            for key in ("precision", "recall", "f1-score")
        }
        averages[name] = columns | {"support": wanted.total()}
    return report | averages


def chunk_confusion(true: Tags, predicted: Tags) -> ChunkConfusion:
    """Count how often chunks of one type are predicted as another type at the same positions.

    Args:
        true, predicted: see :func:`chunk_report`.

    Raises:
        ValueError: a tag has another form than for :func:`chunk_report`, or lengths differ.

    Examples:
        >>> from lmbm_torch.metrics import chunk_confusion
        >>> chunk_confusion([["B-a", "I-a", "O", "B-b"]], [["B-a", "O", "O", "B-a"]]).counts.tolist()
        [[0, 0, 1], [1, 0, 0], [1, 0, 0]]
    """
    truth, found = _all_chunks(true, predicted)
    types = (*sorted({kind for *_, kind in truth | found}), "O")
    place = {kind: index for index, kind in enumerate(types)}
    own, other = ({tuple(span): kind for *span, kind in each} for each in (truth, found))
    counts = np.zeros((len(types), len(types)), np.int64)
    for span in own.keys() | other.keys():
        counts[place[own.get(span, "O")], place[other.get(span, "O")]] += 1
    return ChunkConfusion(types, counts)


def _shares(right: int, given: int, wanted: int) -> dict[str, float]:
    precision, recall = right / given if given else 0.0, right / wanted if wanted else 0.0
    f1 = 2 * precision * recall / (precision + recall) if right else 0.0
    return {"precision": precision, "recall": recall, "f1-score": f1, "support": wanted}


def _all_chunks(true: Tags, predicted: Tags) -> tuple[set[tuple[int, int, int, str]], ...]:
    """Return the sets of true and predicted chunks; a chunk is (sequence, first, last position, type)."""
    if len(true) != len(predicted):
        raise ValueError(f"predicted: expected {len(true)} sequences, got {len(predicted)} sequences")
    found = []
    for name, sequences in (("true", true), ("predicted", predicted)):
        own = set()
        for number, (tags, other) in enumerate(zip(sequences, true, strict=True)):
            if len(tags) != len(other):
                raise ValueError(f"{name}: expected {len(other)} tags in sequence {number}, got {len(tags)}")
            if strange := [tag for tag in tags if not is_chunk_tag(tag)]:
                raise ValueError(
                    f"{name}: expected O, or B, I, E or S, a hyphen and a type, got {strange[0]!r}"
                )
            own |= {(number, *chunk) for chunk in chunks([str(tag) for tag in tags])}
        found.append(own)
    return tuple(found)


def is_chunk_tag(tag: str) -> bool:
    """Return whether a tag is ``O``, or consists of B, I, E or S, a hyphen, and a type."""
    return tag == "O" or (tag[:2] in ("B-", "I-", "E-", "S-") and len(tag) > 2)


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

    Chunks are defined as in the CoNLL-2000 shared task, see :func:`chunks`. If there is no chunk, F1 is 0.

    Args:
        preds, target: see :func:`sequence_accuracy`.
        label_names: a tag for each class, such as ``B-NP``, ``I-NP`` and ``O``.

    Raises:
        ValueError: see :func:`sequence_accuracy`; also if a name is no chunk tag, or a class has no name.

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
        ValueError: a name is no chunk tag.

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
            raise ValueError(f"{name}: expected classes 0 to {len(self.label_names) - 1}, got another class")
        sequences = (row[own].tolist() for row, own in zip(labels.cpu(), inside.cpu(), strict=True))
        return {
            (number, *chunk)
            for number, sequence in enumerate(sequences)
            for chunk in chunks([self.label_names[label] for label in sequence])
        }


def _inside(preds: Tensor, target: Tensor) -> Bool[Tensor, "batch length"]:
    """Check the arguments of :func:`sequence_accuracy`; return a mask of the labels that are not padding."""
    check_shape("preds", preds, None, None)
    check_shape("target", target, *preds.shape)
    inside = target != PADDING
    if not bool(inside.any(1).all()):
        raise ValueError("target: expected a label in every sequence, got a sequence without labels")
    return inside
