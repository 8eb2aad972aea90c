"""Metrics for chunks of tagged sequences, such as phrases and entities: by type, and confusions of types."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from lmbm_torch.shapes import Int

Tags = Sequence[Sequence[str]]


class ChunkConfusion(NamedTuple):
    """The number of chunks for each true type (row) and each predicted type (column).

    Args:
        types: the types, and ``"O"`` as the last: the row counts predicted chunks where no chunk is, its
            column counts true chunks that are not found.
        counts: (types, types).
    """

    types: tuple[str, ...]
    counts: Int[np.ndarray, "types types"]


def chunks(tags: Sequence[str]) -> Iterator[tuple[int, int, str]]:
    """Yield first position, last position and type of each chunk in a sequence of tags.

    Chunks are those of the CoNLL-2000 shared task, in the schemes BIO, IOB1 and BIOES: a chunk begins with B
    or S, or with an I or E that does not continue a chunk of the same type; a chunk ends after E or S.
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
    """Return precision, recall and F1 of chunks, by type and on average, equal to those of seqeval.

    A chunk is right if the type, the first and the last position are right, see :func:`chunks`. If there is
    no chunk to divide by, a value is 0.

    Args:
        true: tags of each sequence: ``"O"``, or a prefix of B, I, E and S, a hyphen and a type.
        predicted: tags of the same lengths.

    Returns:
        For each type in alphabetical order, and for ``"micro avg"``, ``"macro avg"`` and ``"weighted avg"``
        (weighted by the number of true chunks), a dictionary of ``"precision"``, ``"recall"``, ``"f1-score"``
        and ``"support"``, the number of true chunks.

    Raises:
        ValueError: tags have another form, lengths differ, or there is no chunk at all.

    Examples:
        >>> from lmbm_torch.metrics import chunk_report
        >>> chunk_report([["B-a", "I-a", "O", "B-b"]], [["B-a", "I-a", "O", "B-a"]])["micro avg"]["f1-score"]
        0.5
    """
    truth, found = _all_chunks(true, predicted)
    types = sorted({kind for *_, kind in truth | found})
    if not types:
        raise ValueError("true: expected at least one chunk in all sequences, got only O")
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
        ValueError: tags have another form, or lengths differ.

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
