"""Sequences from files of columns (CoNLL): tags to learn, and features from the other columns.

A file has one token per line, and a blank line between sequences.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import compress
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from lmbm_torch.checks import check_shape
from lmbm_torch.data.sequences.records import SequenceData
from lmbm_torch.data.sequences.windows import TAG_TEMPLATES, WORD_TEMPLATES, Windows
from lmbm_torch.files import Mode, reading, replacing_text
from lmbm_torch.incoming import UNREADABLE, lines
from lmbm_torch.persistence.stored import Stored
from lmbm_torch.shapes import Bool, Int

DOCUMENT = "-DOCSTART-"
"""The beginning of a line without a token."""
BLANKS = " \t"
# Match the first column of CoNLL-U: numbers of tokens, and numbers such as 1-2 and 1.1 of lines to leave out.
IDENTIFIER, SPAN = re.compile("[1-9][0-9]*"), re.compile("[0-9]+[-.][0-9]+")


@dataclass(frozen=True, eq=False)
class Tokens:
    """The tokens of a file.

    Args:
        rows: the values of each token; all tokens have equally many values.
        start: the index of the first token of each sequence, then the number of tokens.
        lines: line number of each token, from 1, for messages.
        documents: the number of each sequence's document, from 0; a line ``-DOCSTART-`` or ``# newdoc``
            begins a document.
        separator: separator of the values, a tab or a space.
    """

    rows: list[list[str]]
    start: Int[np.ndarray, " sequences_and_one"]
    lines: list[int]
    documents: Int[np.ndarray, " sequences"]
    separator: str

    @property
    def num_columns(self) -> int:
        return len(self.rows[0])

    def column(self, number: int) -> list[str]:
        """Return the values of all tokens in one column."""
        return [row[number] for row in self.rows]


def read_columns(path: str | PathLike) -> Tokens:
    """Read a file of values separated by tabs or, if the first line has no tab, by blanks.

    Lines that begin with ``-DOCSTART-`` end a sequence and are left out. Comments are left out, too: lines
    before a sequence that begin with ``#`` and have a different number of values, or, such as ``# id 1``,
    have a last value that no other line has in that column.

    If the first column numbers the tokens of each sequence 1, 2, 3 and so on (CoNLL-U), lines of multi-word
    tokens (``1-2``) and of empty nodes (``1.1``) are also left out.

    Raises:
        FileNotFoundError: the file does not exist.
        ValueError: the file has no tokens, or a line has more or fewer values than the first line; the
            message names the file and the line.
    """
    with reading(path, *UNREADABLE) as file, lines(file) as found:
        given = [line.strip("\r\n") for line in found]
        first = next((line for line in given if _is_token(line) and not line.startswith("#")), "")
        separator = "\t" if "\t" in first else " "
        count = len(_split(first, separator))
        last = {_split(line, separator)[-1] for line in given if _is_token(line) and line[0] != "#"} | {"#"}
        rows, numbers, start, documents = [], [], [0], [0]
        for number, line in enumerate(given, 1):
            if line.startswith((DOCUMENT, "# newdoc")):
                documents.append(len(rows))
            if not _is_token(line):
                start.append(len(rows))
                continue
            row = _split(line, separator)
            is_comment = len(row) != count if line[:2] != "# " else len(row) != count or row[-1] not in last
            if line[0] == "#" and first and start[-1] == len(rows) and is_comment:
                continue
            if rows and len(row) != len(rows[0]):
                raise ValueError(
                    f"line {number}: expected {len(rows[0])} values as in line {numbers[0]}, got {len(row)}: "
                    f"{line!r}"
                )
            rows.append(row)
            numbers.append(number)
        if not rows:
            raise ValueError("expected lines with tokens, got only blank lines, comments and -DOCSTART-")
    # np.unique, because several blank lines in a row end only one sequence.
    begins = np.unique([*start, len(rows)]).astype(np.int64)
    of_each = np.searchsorted(np.unique(documents), begins[:-1], side="right") - 1
    return _numbered(Tokens(rows, begins, numbers, of_each, separator))


def _numbered(tokens: Tokens) -> Tokens:
    """Return the tokens without lines such as ``1-2`` and ``1.1`` if the other lines count from 1 on."""
    are_ids = np.array([IDENTIFIER.fullmatch(row[0]) is not None for row in tokens.rows])
    before = np.concatenate([[0], are_ids.cumsum()])
    start = before[tokens.start]
    kept = [*compress(range(len(are_ids)), are_ids)]
    places = np.arange(len(kept)) - np.repeat(start[:-1], np.diff(start)) + 1
    if are_ids.all() or (np.diff(start) == 0).any():
        return tokens
    rows = [tokens.rows[each] for each in kept]
    others = compress(tokens.rows, ~are_ids)
    if any(row[0] != str(place) for row, place in zip(rows, places, strict=True)) or not all(
        SPAN.fullmatch(row[0]) for row in others
    ):
        return tokens
    return replace(tokens, rows=rows, start=start, lines=[tokens.lines[each] for each in kept])


def _is_token(line: str) -> bool:
    return bool(line.strip(BLANKS)) and not line.startswith(DOCUMENT)


def _split(line: str, separator: str) -> list[str]:
    # str.split would also split at a no-break space, which belongs to a token.
    return line.split("\t") if separator == "\t" else re.split(f"[{BLANKS}]+", line.strip(BLANKS))


def write_columns(
    path: str | PathLike, tokens: Tokens, added: Sequence[Sequence[str]], mode: Mode = "x"
) -> None:
    """Write tokens with additional columns to a file, which appears complete or not at all.

    Args:
        added: for each token, values to write after the values of the token.
        mode: as in ``open``: by default an existing file is never overwritten.

    Raises:
        FileExistsError: the file exists, in mode ``"x"``.
    """
    with replacing_text(path, mode) as stream:
        for first, end in zip(tokens.start[:-1], tokens.start[1:], strict=True):
            for row, more in zip(tokens.rows[first:end], added[first:end], strict=True):
                stream.write(tokens.separator.join([*row, *more]) + "\n")
            stream.write("\n")


TRAIN, TEST = 0, 1
"""Folds of the training part and of the test part."""


@dataclass(frozen=True, eq=False)
class ColumnSchema(Stored):
    """The conversion of the columns of a file to sequences, learned from a training part.

    Args:
        num_columns: number of columns, with the column of tags.
        tag: position of the column of tags, from 0.
        label_names: the tags.
        windows: the features from the other columns.
    """

    num_columns: int
    tag: int
    label_names: tuple[str, ...]
    windows: Windows

    def has_tags(self, tokens: Tokens) -> bool:
        """Return whether a file has all columns; a file to predict may lack the column of tags.

        Raises:
            ValueError: the number of columns of the file differs.
        """
        if tokens.num_columns not in (self.num_columns, self.num_columns - 1):
            raise ValueError(
                f"line {tokens.lines[0]}: expected {self.num_columns} values, or {self.num_columns - 1} "
                f"without the tag, got {tokens.num_columns}"
            )
        return tokens.num_columns == self.num_columns

    def codes(self, tokens: Tokens) -> list[Int[np.ndarray, " positions"]]:
        """Return integer codes of the values in each column, except for the column of tags."""
        numbers = [number for number in range(tokens.num_columns) if number != self.tag]
        if not self.has_tags(tokens):
            numbers = list(range(tokens.num_columns))
        return [self.windows.encode(place, tokens.column(number)) for place, number in enumerate(numbers)]

    def data(self, tokens: Tokens, name: str) -> SequenceData:
        """Return the sequences of a file, all in fold 0; without tags, all labels are the first tag.

        Tags that are not in the training part are appended to ``label_names``; no model predicts these tags.
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
        """Count, for each column of features, the tokens whose value is not in the training part."""
        pairs = zip(self.windows.columns, self.codes(tokens), self.windows.values, strict=True)
        return {name: int((codes > len(values)).sum()) for name, codes, values in pairs}

    def unknown_tags(self, tokens: Tokens) -> dict[str, list[int]]:
        """Return each tag that is not in the training part, with the numbers of its lines."""
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
    groups: Sequence[Any] | str | None = None,
    tag: int = -1,
    columns: Sequence[str] | None = None,
    templates: Sequence[Sequence[Sequence[int]]] | None = None,
    seed: int = 0,
) -> SequenceData:
    r"""Read sequences from a file of columns, see :func:`read_columns`.

    Features are indicators of the values around a token in the other columns
    (:class:`~lmbm_torch.data.sequences.windows.Windows`), for values that occur in the training part.

    Args:
        test: a file with the same columns, whose sequences become fold 1.
        test_fraction: without ``test``, the share of the sequences to hold out as fold 1.
        groups: without ``test``, sequences of a group are held out together: a group for each sequence, or
            ``"documents"``, which lines ``-DOCSTART-`` or ``# newdoc`` begin.
        tag: position of the column of tags, from 0; a negative position counts from the end.
        columns: names of the other columns; by default word, tag, column_3, …
        templates: for each of the other columns a list of features, each a list of relative positions, such
            as ``[-1, 0]``; by default the usual features for text chunking: features of words for the first
            column, of part-of-speech tags for other columns.
        seed: seed of the choice of sequences to hold out.

    Returns:
        Sequences with the training part as fold 0; ``label_names`` are the tags of the training part, then
        tags that occur only in fold 1.

    Raises:
        FileNotFoundError: the file does not exist.
        ValueError: errors of :func:`read_columns`; a single column; an unknown column of tags; other columns
            in the test file; names or templates for another number of columns; a share outside [0, 1), or a
            share that leaves nothing to train on; another number of groups than of sequences; no group to
            hold out.

    Examples:
        >>> import tempfile, pathlib
        >>> from lmbm_torch.data import read_conll
        >>> path = pathlib.Path(tempfile.mkdtemp(), "toy.conll")
        >>> count = path.write_text("Ann NOUN\nruns VERB\n\nBob NOUN\n")
        >>> read_conll(path).label_names
        ('NOUN', 'VERB')
    """
    if not 0 <= test_fraction < 1:
        raise ValueError(f"test_fraction: expected 0 or more and less than 1, got {test_fraction}")
    tokens = read_columns(path)
    count = tokens.num_columns
    if count < 2:
        raise ValueError(f"path: expected at least two columns (one with tags), got {count} in {path}")
    if not -count <= tag < count:
        raise ValueError(f"tag: expected the position of a column, {-count} to {count - 1}, got {tag}")
    held = None if test is None else read_columns(test)
    if held is not None and held.num_columns != count:
        raise ValueError(f"test: expected {count} columns as in {path}, got {held.num_columns} in {test}")
    sequences = len(tokens.start) - 1
    together = None if groups is None else _groups(groups, tokens)
    fold = np.zeros(sequences, np.int64)
    if held is not None:
        fold = np.concatenate([fold, np.ones(len(held.start) - 1, np.int64)])
        tokens = _joined(tokens, held)
    elif test_fraction:
        fold[_drawn(np.arange(sequences) if together is None else together, test_fraction, seed)] = TEST
        if (fold == TEST).all():
            raise ValueError(
                f"test_fraction: expected a share that leaves some of {sequences} sequences to train, got "
                f"{test_fraction}"
            )
        if together is not None and not fold.any():
            raise ValueError(f"groups: expected groups to hold out, got {len(np.unique(together))} in all")
    schema = _learned(_chosen(tokens, fold == TRAIN), tag % count, columns, templates)
    return replace(schema.data(tokens, Path(path).stem), fold=fold)


def _groups(groups: Sequence[Any] | str, tokens: Tokens) -> np.ndarray:
    """Return the groups of sequences, see :func:`read_conll`."""
    if isinstance(groups, str):
        if groups != "documents":
            raise ValueError(f"groups: expected 'documents' or a group for each sequence, got {groups!r}")
        return tokens.documents
    found = np.asarray(groups)
    check_shape("groups", found, len(tokens.documents))
    return found


def _drawn(groups: np.ndarray, fraction: float, seed: int) -> Bool[np.ndarray, " sequences"]:
    """Draw whole groups with about a share of the sequences."""
    _, group, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    order = np.random.default_rng(seed).permutation(len(sizes))
    # A group that passes the share is drawn if at least half of the group is within.
    middles = sizes[order].cumsum() - sizes[order] / 2
    return np.isin(group, order[middles < round(fraction * len(groups))])


def _learned(tokens: Tokens, tag: int, columns: Any, templates: Any) -> ColumnSchema:
    others = [number for number in range(tokens.num_columns) if number != tag]
    names = [*("word", "tag")[: len(others)], *(f"column_{place + 1}" for place in range(2, len(others)))]
    usual = [WORD_TEMPLATES, *[TAG_TEMPLATES] * (len(others) - 1)]
    for argument, given in (("columns", columns), ("templates", templates)):
        if given is not None and len(given) != len(others):
            raise ValueError(
                f"{argument}: expected {len(others)}, one for each column of features, got {len(given)}"
            )
    texts = [tokens.column(number) for number in others]
    values = [sorted({*each}) for each in texts]
    empty = Windows(tuple(columns or names), tuple(map(tuple, values)), (), ())
    codes = [empty.encode(place, each) for place, each in enumerate(texts)]
    windows = Windows.of(empty.columns, values, templates or usual, codes, tokens.start)
    return ColumnSchema(tokens.num_columns, tag, tuple(sorted({*tokens.column(tag)})), windows)


def _joined(first: Tokens, second: Tokens) -> Tokens:
    start = np.concatenate([first.start, second.start[1:] + first.start[-1]])
    documents = np.concatenate([first.documents, second.documents + first.documents[-1] + 1])
    return Tokens(first.rows + second.rows, start, first.lines + second.lines, documents, first.separator)


def _chosen(tokens: Tokens, chosen: np.ndarray) -> Tokens:
    spans = [slice(*tokens.start[each : each + 2]) for each in np.flatnonzero(chosen)]
    rows = [row for span in spans for row in tokens.rows[span]]
    lines = [line for span in spans for line in tokens.lines[span]]
    start = np.concatenate([[0], np.cumsum([span.stop - span.start for span in spans])]).astype(np.int64)
    return Tokens(rows, start, lines, tokens.documents[chosen], tokens.separator)
