"""Files of columns, one token a line and a blank line between sequences (CoNLL), read and written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import IO

import numpy as np

from lmbm_torch.data.formats.lines import LimitedLines
from lmbm_torch.files import Mode, reading, replacing_text
from lmbm_torch.shapes import Int

DOCUMENT = "-DOCSTART-"
"""Begins a line that stands for no token."""


@dataclass(frozen=True, eq=False)
class Tokens:
    """The content of a file.

    Args:
        rows: of each token, its values, as many for all.
        start: where each sequence's tokens begin, and the number of tokens.
        lines: of each token, from 1, for messages.
        separator: between values, a tab or a space.
    """

    rows: list[list[str]]
    start: Int[np.ndarray, " sequences_and_one"]
    lines: list[int]
    separator: str

    @property
    def num_columns(self) -> int:
        return len(self.rows[0])

    def column(self, number: int) -> list[str]:
        """The values of all tokens in one column."""
        return [row[number] for row in self.rows]


def read_columns(path: str | PathLike) -> Tokens:
    """Read a file in UTF-8: a token's values stand between tabs, or where the first has none between blanks.

    Lines that begin with ``-DOCSTART-`` end a sequence and are left out.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: a file without tokens, or one with another number of values in some line than in the
            first; the message names the file and the line.
    """
    with reading(path) as file, file.open(encoding="utf-8-sig") as stream:
        rows, lines, start, separator = [], [], [0], " "
        for number, line in _lines(stream):
            if not line.strip() or line.startswith(DOCUMENT):
                start.append(len(rows))
                continue
            if not rows:
                separator = "\t" if "\t" in line else " "
            row = line.split("\t") if separator == "\t" else line.split()
            if rows and len(row) != len(rows[0]):
                raise ValueError(
                    f"line {number}: expected {len(rows[0])} values as in line {lines[0]}, got {len(row)}: "
                    f"{line!r}"
                )
            rows.append(row)
            lines.append(number)
        if not rows:
            raise ValueError("expected a token in some line, got none")
    # Several blank lines end one sequence.
    return Tokens(rows, np.unique([*start, len(rows)]).astype(np.int64), lines, separator)


def write_columns(
    path: str | PathLike, tokens: Tokens, added: Sequence[Sequence[str]], mode: Mode = "x"
) -> None:
    """Write a file of columns with more of them; the file appears complete or not at all.

    Args:
        added: of each token, what stands behind its values.
        mode: as in ``open``: by default an existing file is never overwritten.

    Raises:
        FileExistsError: the file exists, in mode ``"x"``.
    """
    with replacing_text(path, mode) as stream:
        for first, end in zip(tokens.start[:-1], tokens.start[1:], strict=True):
            for row, more in zip(tokens.rows[first:end], added[first:end], strict=True):
                stream.write(tokens.separator.join([*row, *more]) + "\n")
            stream.write("\n")


def _lines(stream: IO[str]) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(LimitedLines(stream), 1):
        yield number, line.rstrip("\r\n")
