"""Data sets from CSV files, ARFF files and data frames, whose columns become features and labels."""

from __future__ import annotations

import csv
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from io import TextIOWrapper
from itertools import islice
from os import PathLike
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np

from lmbm_torch.data.dataset import MultilabelData, without_split
from lmbm_torch.data.formats import arff
from lmbm_torch.data.formats.limits import LimitedLines, open_compressed
from lmbm_torch.data.splits import Splitter, held_out, stratified_split
from lmbm_torch.data.tables.columns import MISSING, Table, as_numbers, as_texts, is_missing, naming
from lmbm_torch.data.tables.encoding import TableOptions, fit_encoding, matching
from lmbm_torch.data.tables.frames import check_names, is_frame, open_frame
from lmbm_torch.data.tables.schema import Schema, label_matrix
from lmbm_torch.files import reading

DELIMITERS = (",", ";", "\t", "|")
ROWS_TO_SNIFF = 50
ENDINGS = (".csv", ".tsv", ".csv.gz", ".tsv.gz", ".arff")
"""Endings of files of tables."""


def is_table(path: str | PathLike) -> bool:
    """Return whether the ending of a file is in :data:`ENDINGS`."""
    return str(path).lower().endswith(ENDINGS)


def open_table(source: Any, delimiter: str | None = None, expected: str | None = None) -> Table:
    """Open a table from a file, .csv or .tsv (also .gz) or dense .arff, or from a data frame.

    A CSV file starts with a line of names and is UTF-8. A column is numeric if every value that is not
    missing is a number, else a column of texts. If values are separated by another character than a comma, a
    comma may be the decimal sign (``1,5``). In an ARFF file nominal values that are all numbers count as
    numbers. Data frames are those of pandas, polars and Arrow.

    Args:
        delimiter: between the values of a CSV file; by default the entry of :data:`DELIMITERS` by which the
            first rows have the same number of values, more than one; else a comma, or a tab in .tsv files.
        expected: the delimiter to try first.

    Raises:
        FileNotFoundError: the file does not exist.
        TypeError: ``source`` is neither a path nor a data frame.
        ValueError: another ending; an unreadable file; no row; columns without a name or of the same
            name; a column of values neither numbers nor texts. The message names the source.
    """
    if is_frame(source):
        return open_frame(source)
    if not isinstance(source, str | PathLike):
        raise TypeError(f"source: expected a path or a data frame, got {type(source).__name__}")
    if not is_table(source):
        raise ValueError(
            f"path: expected a file ending in one of {', '.join(ENDINGS)}, got {source}; "
            "read_npz and read_svmlight read matrices without named columns"
        )
    with reading(source, csv.Error, OSError, EOFError, zlib.error) as file:
        if file.suffix.lower() == ".arff":
            return _from_arff(file)
        _check_delimiter(delimiter)
        usual = "\t" if ".tsv" in file.name.lower() else ","
        return _from_csv(file, _sniffed(file, expected, usual) if delimiter is None else delimiter)


def cells(path: str | PathLike, names: Sequence[str], delimiter: str | None = None) -> dict[str, list[str]]:
    """Return the cells of named columns of a CSV file as written: ``007`` stays ``007``.

    Args:
        names: columns; names that the file does not have are left out.
        delimiter: found by :func:`open_table`; None for sources without cells, with an empty result.
    """
    if delimiter is None:
        return {}
    with reading(path, csv.Error, OSError, EOFError, zlib.error) as file, _opened(file) as stream:
        rows = csv.reader(LimitedLines(stream), delimiter=delimiter, strict=True)
        header = [name.strip() for name in next(_read(rows), [])]
        content = [row for row in _read(rows) if row]
    return {name: [row[header.index(name)] for row in content] for name in names if name in header}


def _opened(file: Path) -> IO[str]:
    return TextIOWrapper(open_compressed(file), encoding="utf-8-sig", newline="")


def _sniffed(file: Path, expected: str | None, usual: str) -> str:
    """Return the delimiter on which the first rows agree, or else most of the first rows.

    With the delimiter of most rows, an error names the rows that differ.
    """
    with _opened(file) as stream:
        head = list(islice(LimitedLines(stream), ROWS_TO_SNIFF))
    of_most: dict[str, int] = {usual: 0}
    for delimiter in dict.fromkeys([*filter(None, [expected]), usual, *DELIMITERS]):
        try:
            rows = [row for row in csv.reader(head, delimiter=delimiter) if row]
        except csv.Error:
            continue
        # The last line may be an incomplete row.
        widths = {len(row) for row in (rows[:-1] if len(head) == ROWS_TO_SNIFF else rows)}
        if len(widths) == 1 and widths != {1}:
            return delimiter
        same = [len(row) == len(rows[0]) > 1 for row in rows]
        if 2 * sum(same) > len(same):
            of_most[delimiter] = sum(same)
    return max(of_most, key=lambda delimiter: of_most[delimiter])


def _from_csv(file: Path, delimiter: str) -> Table:
    with _opened(file) as stream:
        rows = csv.reader(LimitedLines(stream), delimiter=delimiter, strict=True)
        names = [name.strip() for name in next(_read(rows), [])]
        check_names(names)
        cells: list[list[str]] = []
        for row in _read(rows):
            if not row:
                continue
            if len(row) != len(names):
                raise ValueError(f"line {rows.line_num}: expected {len(names)} values, got {len(row)}")
            cells.append(row)
    if not cells:
        raise ValueError("expected at least one row, got none")
    has_comma = delimiter != ","
    columns = (
        as_numbers([None if text in MISSING else text for text in map(str.strip, each)], has_comma)
        for each in zip(*cells, strict=True)
    )
    return Table(file.name.partition(".")[0], dict(zip(names, columns, strict=True)), delimiter)


def _check_delimiter(delimiter: Any) -> None:
    if delimiter is None:
        return
    if not isinstance(delimiter, str) or len(delimiter) != 1 or delimiter in '\r\n"':
        raise ValueError(f"delimiter: expected one character, no quote or line end, got {delimiter!r}")


def _read(rows: Any) -> Iterator[list[str]]:
    """Yield the rows of a reader; word the reader's own limit of a cell with the number of the line."""
    try:
        yield from rows
    except csv.Error as error:
        limit = csv.field_size_limit()
        if "field limit" not in str(error):
            raise
        raise ValueError(
            f"line {rows.line_num}: expected cells of at most {limit} characters, got a longer one; "
            "csv.field_size_limit of Python's csv module raises that"
        ) from error


def _from_arff(file: Path) -> Table:
    if arff.is_sparse(file):
        raise ValueError("expected a dense ARFF file; read_arff (data=arff) reads sparse ones")
    content = arff.parse(file, encode_nominal=False)
    names = [name for name, _ in content["attributes"]]
    check_names(names)
    if not content["data"]:
        raise ValueError("expected at least one row, got none")
    columns = {}
    for (name, kind), values in zip(content["attributes"], zip(*content["data"], strict=True), strict=True):
        is_text = isinstance(kind, list) or kind == "STRING"
        columns[name] = as_numbers(values) if is_text else np.array(values, np.float64)
    return Table(file.stem, columns)


MissingLabels = Literal["unknown", "negative"]


def read_table(
    train: str | PathLike | Any,
    labels: str | Sequence[str],
    *,
    test: str | PathLike | Any = None,
    test_fraction: float = 0.0,
    seed: int = 0,
    groups: str | None = None,
    id_columns: str | Sequence[str] = (),
    missing_labels: MissingLabels = "unknown",
    delimiter: str | None = None,
    test_splitter: Splitter = stratified_split,
    **options: Any,
) -> MultilabelData:
    """Read a table, .csv, .tsv, dense .arff or a data frame, and optionally another table for testing.

    Every column that is neither a label nor ignored is encoded by
    :func:`~lmbm_torch.data.tables.encoding.fit_encoding`. ``data.schema`` records how, so new rows can be
    read in the same way.

    Args:
        train: the table of the training part, as :func:`open_table` takes it.
        labels: names of columns, or patterns such as ``tag_*``, in the order of the labels;
            values are 0, 1, true, false, yes, no, or missing.
        test: a table with the same columns, for testing only.
        test_fraction: share of the completely labelled rows of ``train`` to hold out for testing; only
            without ``test``.
        seed: of the rows to hold out.
        groups: a column of group names, such as numbers of patients; not a feature. All
            rows of a group are held out or none. Groups with missing labels stay. Each label
            keeps its proportion.
        id_columns: names or patterns of columns that name the rows, repeated in predictions; not features.
        missing_labels: ``"unknown"`` for NaN, which training can handle; ``"negative"`` for 0, for tables
            that mark true labels and leave the rest empty. Unmarked positives are then errors, against which
            negatives can be given less weight (``class_weight={0: 0.3}`` of the estimators).
        delimiter: between the values of CSV files; by default detected.
        test_splitter: holds out rows if there are no ``groups``: ``stratified_split``, ``iterative_split``,
            which keeps the proportion of rare labels, or ``random_split`` of :mod:`lmbm_torch.data.splits`.
        options: ``ignore``, ``categorical``, ``text``, ``missing``, ``unknown``, ``odd_numbers``,
            ``max_categories`` and ``sparse`` of :class:`~lmbm_torch.data.tables.encoding.TableOptions`.

    Raises:
        FileNotFoundError: the file does not exist.
        TypeError: neither a path nor a data frame, or an unknown option.
        ValueError: errors of the functions named above; both ``test`` and ``test_fraction``; another value of
            ``missing_labels``.

    Examples:
        >>> import pandas as pd
        >>> from lmbm_torch.data import read_table
        >>> frame = pd.DataFrame({"age": [3, 5, 8], "tag_sun": [1, 0, 1], "tag_sea": ["no", "yes", None]})
        >>> data = read_table(frame, "tag_*")
        >>> data.labels.tolist()
        [[1.0, 0.0], [0.0, 1.0], [1.0, nan]]
    """
    if missing_labels not in ("unknown", "negative"):
        raise ValueError(f"missing_labels: expected 'unknown' or 'negative', got {missing_labels!r}")
    if test is not None and test_fraction:
        raise ValueError(f"test_fraction: expected 0 beside a test table, got {test_fraction}")
    table = open_table(train, delimiter)
    with naming(table):
        label_names = matching("labels", labels, list(table.columns))
        if missing_labels == "negative":
            table = _without_missing(table, label_names)
        together = None if groups is None else groups_of(table, groups)
        tested = _held_out(table, label_names, test_fraction, seed, test_splitter, together)
        ids = matching("id_columns", id_columns, list(table.columns))
        left_out = {*label_names, *ids, *([] if groups is None else [groups])}
        part = replace(table, columns={name: values[~tested] for name, values in table.columns.items()})
        known = label_matrix(part, label_names) if label_names else None
        encoding = fit_encoding(part, TableOptions(**options), known, label_names, left_out)
        schema = Schema(encoding, tuple(label_names), tuple(ids), table.delimiter)
    data = _as_described(table, schema)
    if test is None:
        return data.with_split(np.flatnonzero(~tested), np.flatnonzero(tested))
    test_table = open_table(test, delimiter, schema.delimiter)
    if absent := [name for name in label_names if name not in test_table.columns]:
        raise ValueError(f"test: expected a column for each label, got none named {absent}")
    if missing_labels == "negative":
        with naming(test_table):
            test_table = _without_missing(test_table, label_names)
    return data.with_test(_as_described(test_table, schema))


def new_rows(
    source: str | PathLike | Any, schema: Schema, delimiter: str | None = None, *, labelled: bool = True
) -> MultilabelData:
    """Read rows of another table by a schema, all as training part.

    Labels without a column are NaN.

    Args:
        labelled: read the labels; otherwise all labels are NaN, whatever the table has.

    Raises:
        The errors of :func:`open_table` and of :class:`~lmbm_torch.data.tables.schema.Schema`.
    """
    table = open_table(source, delimiter, schema.delimiter)
    if not labelled:
        kept = {name: each for name, each in table.columns.items() if name not in schema.label_names}
        table = replace(table, columns=kept)
    return _as_described(table, schema)


def _without_missing(table: Table, label_names: Sequence[str]) -> Table:
    labels = np.nan_to_num(label_matrix(table, label_names))
    return replace(table, columns={**table.columns, **dict(zip(label_names, labels.T, strict=True))})


def _as_described(table: Table, schema: Schema) -> MultilabelData:
    features, labels = schema.features(table), schema.labels(table)
    return without_split(table.name, features, labels, schema.label_names, schema.feature_names, schema)


def groups_of(table: Table, column: str) -> np.ndarray:
    """Return the group of each row, (rows,), as texts.

    Raises:
        ValueError: an unknown column, or a row without a group.
    """
    if column not in table.columns:
        raise ValueError(f"groups: expected the name of a column, got {column!r}")
    values = table.columns[column]
    if absent := int(is_missing(values).sum()):
        raise ValueError(f"groups: expected a group for every row, got none for {absent} in {column!r}")
    return np.array(as_texts(values))


def _held_out(
    table: Table,
    label_names: Sequence[str],
    fraction: float,
    seed: int,
    splitter: Splitter,
    groups: np.ndarray | None,
) -> np.ndarray:
    rows = np.zeros(table.num_rows, np.bool_)
    if fraction:
        labels = label_matrix(table, label_names)
        drawn = held_out(labels, fraction, seed, splitter, groups, argument="test_fraction")[1]
        rows[drawn] = True
    return rows
