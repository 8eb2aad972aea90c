"""Rows of CSV files as texts, with a separator that is found in the file.

The module does not import torch, because commands must check names of columns quickly.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from lmbm_torch.data.tables.names import MISSING, as_numbers, check_names
from lmbm_torch.incoming import UNREADABLE, encoding_of, ending, lines

ENDINGS = (".csv", ".tsv", ".arff", ".parquet")
"""Endings of files of tables; compressed text files have ``.gz`` or ``.bz2`` behind."""
DELIMITERS = (",", ";", "\t", "|")
ROWS_TO_SNIFF = 50
DAMAGE = (csv.Error, *UNREADABLE)
"""Exceptions of unreadable files, besides ValueError."""
# Match a first line such as "sep=;", by which some programs tell Excel the separator.
_SEPARATOR = re.compile(r'"?sep=(.)"?\s*', re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True, eq=False)
class Delimited:
    """The open rows of a CSV file.

    Args:
        names: names of the columns, from the first line.
        delimiter: character between values.
        rows: rows of the other lines, with one value for each column.
    """

    names: list[str]
    delimiter: str
    rows: Iterator[list[str]]


@contextmanager
def opened(
    file: Path, delimiter: str | None = None, expected: str | None = None, encoding: str | None = None
) -> Iterator[Delimited]:
    """Open a CSV file, plain or compressed.

    Args:
        delimiter: character between values. The default is taken from a first line ``sep=;``, else the entry
            of :data:`DELIMITERS` that splits the first rows into equally many values, at least two; otherwise
            a comma, or a tab in .tsv files.
        expected: the delimiter to try first.
        encoding: see :func:`~lmbm_torch.incoming.encoding_of`.

    Raises:
        csv.Error: quotes are not closed.
        ValueError: a column has no name, or two columns have the same name; or, on reading rows, a row has
            more or fewer values than there are columns; the message names the line.
    """
    given: Any = delimiter
    if given is not None and (not isinstance(given, str) or len(given) != 1 or given in '\r\n"'):
        raise ValueError(f"delimiter: expected one character, no quote or line end, got {given!r}")
    encoding = encoding_of(file, encoding)
    if delimiter is None:
        with lines(file, encoding) as text:
            head = [*islice(text, ROWS_TO_SNIFF)]
        told = _SEPARATOR.fullmatch(head[0]) if head else None
        usual = "\t" if ending(file) == ".tsv" else ","
        delimiter = str(told[1]) if told else _sniffed(head, expected, usual)
    with lines(file, encoding) as text:
        given = iter(text)
        first = [*islice(given, 1)]
        skipped = int(bool(first) and _SEPARATOR.fullmatch(first[0]) is not None)
        reader = csv.reader(chain(first[skipped:], given), delimiter=delimiter, strict=True)
        names = [name.strip() for name in next(_read(reader, skipped), [])]
        check_names(names)
        yield Delimited(names, delimiter, _rows(reader, skipped, len(names)))


def columns(found: Delimited) -> dict[str, np.ndarray]:
    """Return the columns of a CSV file: numbers, NaN if missing, if all values are numbers; else texts.

    If values are separated by another character than a comma, a comma may be the decimal sign (``1,5``).

    Raises:
        csv.Error, ValueError: no row, or see :func:`opened`.
    """
    cells = [*found.rows]
    if not cells:
        raise ValueError("expected a table with at least one row, got no row")
    has_comma = found.delimiter != ","
    columns = (
        as_numbers([None if text in MISSING else text for text in map(str.strip, each)], has_comma)
        for each in zip(*cells, strict=True)
    )
    return dict(zip(found.names, columns, strict=True))


def _sniffed(head: Sequence[str], expected: str | None, usual: str) -> str:
    """Return the delimiter that splits all, or else most, of the first rows into equally many values.

    If some rows differ, reading these rows raises an error that names the line.
    """
    of_most: dict[str, int] = {usual: 0}
    for delimiter in dict.fromkeys([*filter(None, [expected]), usual, *DELIMITERS]):
        try:
            rows = [row for row in csv.reader(head, delimiter=delimiter) if row]
        except csv.Error:
            continue
        # The last of the lines read so far may be an incomplete row.
        widths = {len(row) for row in (rows[:-1] if len(head) == ROWS_TO_SNIFF else rows)}
        if len(widths) == 1 and widths != {1}:
            return delimiter
        same = [len(row) == len(rows[0]) > 1 for row in rows]
        if 2 * sum(same) > len(same):
            of_most[delimiter] = sum(same)
    return max(of_most, key=lambda delimiter: of_most[delimiter])


def _rows(reader: Any, skipped: int, count: int) -> Iterator[list[str]]:
    for row in _read(reader, skipped):
        if row and len(row) != count:
            raise ValueError(f"line {reader.line_num + skipped}: expected {count} values, got {len(row)}")
        if row:
            yield row


def _read(reader: Any, skipped: int) -> Iterator[list[str]]:
    """Yield the rows of a reader; add the number of the line to the reader's errors."""
    try:
        yield from reader
    except csv.Error as error:
        limit = csv.field_size_limit()
        line = f"line {reader.line_num + skipped}"
        if "field limit" not in str(error):
            raise csv.Error(f"{line}: {error}") from error
        raise ValueError(
            f"{line}: expected cells of at most {limit} characters, got a longer cell; "
            "csv.field_size_limit(…) of Python's csv module raises this limit"
        ) from error
