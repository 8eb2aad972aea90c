"""A data set from the user's own table: columns become features and labels, and keep their names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from os import PathLike
from typing import Any, Literal

import numpy as np

from lmbm_torch.data.dataset import MultilabelData, join, without_split
from lmbm_torch.data.splits import Splitter, held_out, stratified_split
from lmbm_torch.data.tables.columns import Missing, Unknown
from lmbm_torch.data.tables.schema import Schema, TableOptions, fit_schema, label_matrix, matching
from lmbm_torch.data.tables.sources import open_table
from lmbm_torch.data.tables.table import Table, as_texts, is_missing, naming

MissingLabels = Literal["unknown", "negative"]


def read_table(
    train: str | PathLike | Any,
    labels: str | Sequence[str],
    *,
    test: str | PathLike | Any = None,
    test_fraction: float = 0.0,
    seed: int = 0,
    groups: str | None = None,
    ignore: str | Sequence[str] = (),
    categorical: str | Sequence[str] = (),
    text: str | Sequence[str] = (),
    id_columns: str | Sequence[str] = (),
    missing: Missing = "refuse",
    unknown: Unknown = "refuse",
    missing_labels: MissingLabels = "unknown",
    sparse: bool = False,
    delimiter: str | None = None,
    test_splitter: Splitter = stratified_split,
) -> MultilabelData:
    """Read a table, .csv, .tsv, dense .arff or a data frame, and another one to test where there is one.

    Every column but labels and ignored ones is a feature; columns of texts become one feature for each text
    that occurs. ``data.schema`` keeps how, so that new rows can be read in the same way.

    Args:
        train: of the training part, as :func:`~lmbm_torch.data.tables.sources.open_table` takes it.
        labels: names of columns, or patterns such as ``tag_*``, in the order that the labels are to have;
            their values are 0, 1, true, false, yes, no, or missing.
        test: with the same columns; all of it is test part.
        test_fraction: of the rows of ``train`` whose labels are complete, to hold out for testing; without
            ``test`` alone.
        seed: of the rows to hold out.
        groups: a column that says which rows belong together, such as a patient's; it is no feature. All rows
            of a group are held out or none, and none where a row lacks labels; each label in its proportion.
        ignore, categorical, text, id_columns, missing, unknown, sparse: see
            :class:`~lmbm_torch.data.tables.schema.TableOptions`; replacements of missing values come from the
            training part.
        missing_labels: ``"unknown"`` for NaN, which models learn around; ``"negative"`` for 0, of tables that
            mark what is there and leave the rest empty. Positives that nobody marked are then errors, for
            which the negatives can be given less weight (``class_weight={0: 0.3}`` of the estimators).
        delimiter: between the values of CSV files; by default what the file looks like.
        test_splitter: holds out rows without ``groups``: ``stratified_split``, ``iterative_split``, by which
            rare labels have their share, or ``random_split`` of :mod:`lmbm_torch.data.splits`.

    Raises:
        FileNotFoundError: there is no such file.
        TypeError: neither a path nor a data frame.
        ValueError: as the functions named above; ``test`` beside a ``test_fraction``; another word for
            ``missing_labels``.
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
        if groups is not None:
            ignore = [*([ignore] if isinstance(ignore, str) else ignore), groups]
        options = TableOptions(ignore, categorical, text, id_columns, missing, unknown, sparse)
        schema = fit_schema(table, label_names, options, ~tested)
    data = _as_described(table, schema)
    if test is None:
        return data.with_split(np.flatnonzero(~tested), np.flatnonzero(tested))
    test_table = open_table(test, delimiter, schema.delimiter)
    if absent := [name for name in label_names if name not in test_table.columns]:
        raise ValueError(f"test: expected a column for each label, found none named {absent}")
    if missing_labels == "negative":
        with naming(test_table):
            test_table = _without_missing(test_table, label_names)
    return join(data, _as_described(test_table, schema))


def new_rows(
    source: str | PathLike | Any, schema: Schema, delimiter: str | None = None, *, labelled: bool = True
) -> MultilabelData:
    """Rows of another table, read by a schema, all of them as training part.

    Labels whose columns are not there are NaN.

    Args:
        labelled: read the labels; otherwise all are NaN, whatever the table says.

    Raises:
        The errors of :func:`~lmbm_torch.data.tables.sources.open_table` and of
        :class:`~lmbm_torch.data.tables.schema.Schema`.
    """
    table = open_table(source, delimiter, schema.delimiter)
    if not labelled:
        kept = {name: each for name, each in table.columns.items() if name not in schema.label_names}
        table = replace(table, columns=kept)
    return _as_described(table, schema)


def _without_missing(table: Table, label_names: Sequence[str]) -> Table:
    """The table, 0 where a label is missing."""
    labels = np.nan_to_num(label_matrix(table, label_names))
    return replace(table, columns={**table.columns, **dict(zip(label_names, labels.T, strict=True))})


def _as_described(table: Table, schema: Schema) -> MultilabelData:
    """All rows as training part."""
    features, labels = schema.features(table), schema.labels(table)
    return without_split(table.name, features, labels, schema.label_names, schema.feature_names, schema)


def groups_of(table: Table, column: str) -> np.ndarray:
    """The group of each row, (rows,), as texts.

    Raises:
        ValueError: there is no such column, or a row of no group.
    """
    if column not in table.columns:
        raise ValueError(f"groups: expected a column, found none named {column!r}")
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
    """Which rows are for testing."""
    rows = np.zeros(table.num_rows, np.bool_)
    if fraction:
        labels = label_matrix(table, label_names)
        drawn = held_out(labels, fraction, seed, splitter, groups, argument="test_fraction")[1]
        rows[drawn] = True
    return rows
