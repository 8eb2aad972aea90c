"""Sequences of one's own, from files of columns (CoNLL): tags to learn, and features of the other columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from lmbm_torch.data.sequences.columns import Tokens, read_columns
from lmbm_torch.data.sequences.records import SequenceData
from lmbm_torch.data.sequences.windows import TAG_TEMPLATES, WORD_TEMPLATES, Windows
from lmbm_torch.persistence.stored import Stored
from lmbm_torch.shapes import Int

TRAIN, TEST = 0, 1
"""The folds of a set that is read."""


@dataclass(frozen=True, eq=False)
class ColumnSchema(Stored):
    """How a file's columns become sequences, as learned from a training part.

    Args:
        num_columns: with that of the tags.
        tag: the number of the column of tags, from 0.
        label_names: the tags.
        windows: the features of the other columns.
    """

    num_columns: int
    tag: int
    label_names: tuple[str, ...]
    windows: Windows

    def has_tags(self, tokens: Tokens) -> bool:
        """Whether a file has all columns; one without that of the tags may be predicted.

        Raises:
            ValueError: a file with another number of columns.
        """
        if tokens.num_columns not in (self.num_columns, self.num_columns - 1):
            raise ValueError(
                f"line {tokens.lines[0]}: expected {self.num_columns} values, or {self.num_columns - 1} "
                f"without the tag, got {tokens.num_columns}"
            )
        return tokens.num_columns == self.num_columns

    def codes(self, tokens: Tokens) -> list[Int[np.ndarray, " positions"]]:
        """Of each column of features, the codes of its values."""
        numbers = [number for number in range(tokens.num_columns) if number != self.tag]
        if not self.has_tags(tokens):
            numbers = list(range(tokens.num_columns))
        return [self.windows.encode(place, tokens.column(number)) for place, number in enumerate(numbers)]

    def data(self, tokens: Tokens, name: str) -> SequenceData:
        """The sequences of a file, all in fold 0; without its tags they are all the first one.

        Tags that training has not seen are appended to ``label_names``: no answer has them.
        """
        names, labels = self.label_names, np.zeros(len(tokens.rows), np.int64)
        if self.has_tags(tokens):
            tags = tokens.column(self.tag)
            names = (*names, *sorted({*tags} - {*names}))
            place = {tag: code for code, tag in enumerate(names)}
            labels = np.array([place[tag] for tag in tags], np.int64)
        return SequenceData(
            name=name,
            features=self.windows.features(self.codes(tokens), tokens.start),
            labels=labels,
            start=tokens.start,
            label_names=names,
            feature_names=self.windows.names,
            fold=np.zeros(len(tokens.start) - 1, np.int64),
            schema=self,
        )

    def unknown(self, tokens: Tokens) -> dict[str, int]:
        """Of each column of features, how many tokens have a value there that training has not seen."""
        pairs = zip(self.windows.columns, self.codes(tokens), self.windows.values, strict=True)
        return {name: int((codes > len(values)).sum()) for name, codes, values in pairs}

    def unknown_tags(self, tokens: Tokens) -> dict[str, list[int]]:
        """The lines of each tag that training has not seen."""
        found: dict[str, list[int]] = {}
        for tag, line in zip(tokens.column(self.tag), tokens.lines, strict=True):
            if tag not in self.label_names:
                found.setdefault(tag, []).append(line)
        return found


def read_conll(
    path: str | PathLike,
    *,
    test: str | PathLike | None = None,
    test_fraction: float = 0.0,
    tag: int = -1,
    columns: Sequence[str] | None = None,
    templates: Sequence[Sequence[Sequence[int]]] | None = None,
    seed: int = 0,
) -> SequenceData:
    """Sequences of a file of columns, see :func:`~lmbm_torch.data.sequences.columns.read_columns`.

    Features are indicators of what stands around a token in the other columns
    (:class:`~lmbm_torch.data.sequences.windows.Windows`), of values that the training part has.

    Args:
        test: a file with the same columns; its sequences are fold 1.
        test_fraction: without one, the share of the sequences that is held out as fold 1.
        tag: the column of the tags, from 0, or from −1 backwards.
        columns: names of the others; by default word, tag, column_3, …
        templates: of each of the others, the neighbours that a feature looks at together; by default those
            of text chunking, for the first one of a word, for others of a tag.
        seed: of the sequences that are held out.

    Returns:
        The training part as fold 0; ``label_names`` are its tags, then those that only fold 1 has.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: what ``read_columns`` refuses; a single column, a column of tags that is not there, other
            columns in the test file, names or templates for another number of columns; a share outside
            [0, 1), or one that leaves nothing to train on.
    """
    if not 0 <= test_fraction < 1:
        raise ValueError(f"test_fraction: expected 0 or more and less than 1, got {test_fraction}")
    tokens = read_columns(path)
    count = tokens.num_columns
    if count < 2:
        raise ValueError(f"path: expected a column of tags and another one, got {count} in {path}")
    if not -count <= tag < count:
        raise ValueError(f"tag: expected a column from {-count} to {count - 1}, got {tag}")
    held = None if test is None else read_columns(test)
    if held is not None and held.num_columns != count:
        raise ValueError(f"test: expected {count} columns as in {path}, got {held.num_columns} in {test}")
    sequences = len(tokens.start) - 1
    fold = np.zeros(sequences, np.int64)
    if held is not None:
        fold = np.concatenate([fold, np.ones(len(held.start) - 1, np.int64)])
        tokens = _joined(tokens, held)
    elif test_fraction:
        fold[np.random.default_rng(seed).permutation(sequences)[: round(test_fraction * sequences)]] = TEST
        if (fold == TEST).all():
            raise ValueError(f"test_fraction: expected some of {sequences} sequences to train on, got none")
    schema = _learned(_chosen(tokens, fold == TRAIN), tag % count, columns, templates)
    return replace(schema.data(tokens, Path(path).stem), fold=fold)


def _learned(tokens: Tokens, tag: int, columns: Any, templates: Any) -> ColumnSchema:
    """The schema of a training part."""
    others = [number for number in range(tokens.num_columns) if number != tag]
    names = [*("word", "tag")[: len(others)], *(f"column_{place + 1}" for place in range(2, len(others)))]
    usual = [WORD_TEMPLATES, *[TAG_TEMPLATES] * (len(others) - 1)]
    for argument, given in (("columns", columns), ("templates", templates)):
        if given is not None and len(given) != len(others):
            raise ValueError(
                f"{argument}: expected {len(others)}, one a column of features, got {len(given)}"
            )
    texts = [tokens.column(number) for number in others]
    values = [sorted({*each}) for each in texts]
    empty = Windows(tuple(columns or names), tuple(map(tuple, values)), (), ())
    codes = [empty.encode(place, each) for place, each in enumerate(texts)]
    windows = Windows.of(empty.columns, values, templates or usual, codes, tokens.start)
    return ColumnSchema(tokens.num_columns, tag, tuple(sorted({*tokens.column(tag)})), windows)


def _joined(first: Tokens, second: Tokens) -> Tokens:
    start = np.concatenate([first.start, second.start[1:] + first.start[-1]])
    return Tokens(first.rows + second.rows, start, first.lines + second.lines, first.separator)


def _chosen(tokens: Tokens, chosen: np.ndarray) -> Tokens:
    """Some of the sequences."""
    spans = [slice(*tokens.start[each : each + 2]) for each in np.flatnonzero(chosen)]
    rows = [row for span in spans for row in tokens.rows[span]]
    lines = [line for span in spans for line in tokens.lines[span]]
    start = np.concatenate([[0], np.cumsum([span.stop - span.start for span in spans])]).astype(np.int64)
    return Tokens(rows, start, lines, tokens.separator)
