"""Data sets from CSV files, ARFF files and data frames, whose columns become features and labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import numpy as np

from lmbm_torch.checks import is_missing
from lmbm_torch.data.dataset import MultilabelData, without_split
from lmbm_torch.data.formats import arff_text, delimited
from lmbm_torch.data.formats.delimited import DAMAGE, ENDINGS
from lmbm_torch.data.splits import Splitter, held_out, stratified_split
from lmbm_torch.data.tables.columns import Table, as_texts, naming
from lmbm_torch.data.tables.encoding import TableOptions, fit_encoding
from lmbm_torch.data.tables.frames import is_frame, open_frame
from lmbm_torch.data.tables.labels import UNCERTAIN, check_left, fit_labels
from lmbm_torch.data.tables.names import matching
from lmbm_torch.data.tables.schema import Schema, label_matrix
from lmbm_torch.extras import naming_extras
from lmbm_torch.files import reading
from lmbm_torch.incoming import check_growth, ending, title


def is_table(path: str | PathLike) -> bool:
    """Return whether the ending of a file name, without .gz or .bz2, is in :data:`ENDINGS`."""
    return ending(Path(path)) in ENDINGS


def open_table(
    source: Any, delimiter: str | None = None, expected: str | None = None, encoding: str | None = None
) -> Table:
    """Open a data frame or a file: .csv, .tsv, dense .arff (each also with .gz or .bz2) or .parquet.

    A CSV file starts with a line of names, behind a line ``sep=;`` if there is one. A column is numeric if
    every value that is not missing is a number, else a column of texts. If values are separated by another
    character than a comma, a comma may be the decimal sign (``1,5``). In an ARFF file nominal values that are
    all numbers count as numbers, and dates are texts. Frames are of pandas, polars, Arrow, Hugging Face.

    Args:
        delimiter, expected: see :func:`~lmbm_torch.data.formats.delimited.opened`.
        encoding: encoding of a text file; by default UTF-8 or, with a warning, the encoding of Windows.

    Raises:
        FileNotFoundError: the file does not exist.
        TypeError: ``source`` is neither a path nor a data frame.
        ValueError: the ending is not in :data:`ENDINGS`; the file is unreadable or has no row; a column has
            no name, or two columns have the same name; or a column has values that are neither numbers nor
            texts. The message names the source.
    """
    if is_frame(source) or isinstance(source, Table):
        return open_frame(source)
    if not isinstance(source, str | PathLike):
        raise TypeError(f"source: expected a path or a data frame, got {type(source).__name__}")
    if not is_table(source):
        raise ValueError(
            f"path: expected a file ending in one of {', '.join(ENDINGS)}, got {source}; "
            "read_npz and read_svmlight read matrices without named columns"
        )
    with reading(source, *DAMAGE) as file:
        if ending(file) in (".parquet", ".arff"):
            is_arff = ending(file) == ".arff"
            found = Table(title(file), arff_text.read(file).columns()) if is_arff else _from_parquet(file)
            return replace(found, folder=str(file.parent))
        with delimited.opened(file, delimiter, expected, encoding) as found:
            return Table(title(file), delimited.columns(found), found.delimiter, folder=str(file.parent))


def cells(
    path: str | PathLike, names: Sequence[str], delimiter: str | None = None, encoding: str | None = None
) -> dict[str, list[str]]:
    """Return the cells of named columns of a CSV file as texts: ``007`` stays ``007``.

    Args:
        names: names of columns; names of columns that the file does not have are left out.
        delimiter: the delimiter that :func:`open_table` found; None (no CSV file) gives an empty result.
        encoding: see :func:`open_table`.
    """
    if delimiter is None:
        return {}
    with reading(path, *DAMAGE) as file, delimited.opened(file, delimiter, encoding=encoding) as found:
        content = [*found.rows]
    return {name: [row[found.names.index(name)] for row in content] for name in names if name in found.names}


def _from_parquet(file: Path) -> Table:
    with naming_extras():
        import pyarrow
        import pyarrow.parquet

    try:
        about = pyarrow.parquet.read_metadata(file)
        check_growth(file, 8 * about.num_rows * about.num_columns)  # Numbers of 8 bytes.
        table = pyarrow.parquet.read_table(file)
    except pyarrow.ArrowException as error:
        raise ValueError(str(error)) from error
    return replace(open_frame(table), name=file.stem)


MissingLabels = Literal["unknown", "negative"]
Uncertain = Literal["zeros", "ones", "ignored", "self_trained"]


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
    encoding: str | None = None,
    label_words: Sequence[str | float] | None = None,
    label_separator: str | None = None,
    label_classes: str | Sequence[str] = (),
    uncertain: Uncertain | None = None,
    test_splitter: Splitter = stratified_split,
    **options: Any,
) -> MultilabelData:
    """Read a table from a file or a data frame, and optionally another table for testing.

    Every column that is neither a label nor ignored is encoded by
    :func:`~lmbm_torch.data.tables.encoding.fit_encoding`. ``data.schema`` keeps the encoding for new rows.

    Args:
        train: the table of the training part: a file or a data frame for :func:`open_table`.
        labels: names of columns, or patterns such as ``tag_*``, in the order of the labels. The values of a
            column are 0, 1, true, false, yes, no, or missing; or ``x`` and empty; or names of labels, such as
            ``red;blue`` or an array of JSON; or classes, each of which becomes a label such as
            ``colour=red``, see :func:`~lmbm_torch.data.tables.labels.fit_labels`.
        test: a table with the same columns, used only for testing.
        test_fraction: without ``test``, share of the completely labelled rows to hold out for testing.
        seed: seed of the choice of rows to hold out.
        groups: a column with the group of each row, such as the number of a patient; not a feature. Either
            all rows of a group are held out, or none. Groups with missing labels are not held out. Each label
            has about the same proportion in both parts.
        id_columns: names or patterns of columns that identify rows; predictions repeat them; no features.
        missing_labels: ``"unknown"`` for NaN, which training can handle; ``"negative"`` for 0, for tables
            that mark true labels and leave all other cells empty. If some positives are not marked, a smaller
            weight of negatives helps (``class_weight={0: 0.3}`` of the estimators).
        delimiter, encoding: delimiter and encoding of CSV files; by default detected.
        label_words: two further words for 0 and 1 in columns of labels.
        label_separator: text between names of labels in one column; by default a semicolon.
        label_classes: names or patterns of label columns that have one of several classes in each row; by
            default label columns of repeated texts.
        uncertain: how −1 (an uncertain label) is trained: as ``"zeros"``, as ``"ones"``, as missing
            (``"ignored"``), or as a prediction of a first fit (``"self_trained"``, for
            :meth:`~lmbm_torch.prediction.predictor.Predictor.fit`). No row with −1 is held out for testing,
            and −1 becomes NaN in a ``test`` table.
        test_splitter: how rows are held out without ``groups``: ``stratified_split``, ``random_split`` or,
            for rare labels, ``iterative_split`` of :mod:`lmbm_torch.data.splits`.
        options: arguments of :class:`~lmbm_torch.data.tables.encoding.TableOptions`, such as ``text``.

    Raises:
        FileNotFoundError: the file does not exist.
        TypeError: ``train`` or ``test`` is neither a path nor a data frame, or an option is unknown.
        ValueError: a function named above refuses the table; ``test`` and ``test_fraction`` are both given;
            or ``missing_labels`` is unknown.

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
        raise ValueError(f"test_fraction: expected 0, because a test table is given, got {test_fraction}")
    table = open_table(train, delimiter, encoding=encoding)
    with naming(table):
        label_columns = matching("labels", labels, list(table.columns))
        check_left(table.columns, label_columns)
        classes = matching("label_classes", label_classes, label_columns)
        form = fit_labels(table.columns, label_columns, label_words, label_separator, classes, uncertain)
        doubtful, label_names = form.uncertain(table.columns), form.label_names
        table = replace(table, columns=form.applied(table.columns))
        if missing_labels == "negative":
            table = _without_missing(table, label_names)
        together = None if groups is None else groups_of(table, groups)
        tested = np.zeros(table.num_rows, np.bool_)
        if test_fraction:
            known = label_matrix(table, label_names)
            drawn = held_out(known, test_fraction, seed, test_splitter, together, argument="test_fraction")
            tested[drawn[1]] = True
        ids = matching("id_columns", id_columns, list(table.columns))
        left_out = {*label_names, *ids, *([] if groups is None else [groups])}
        part = replace(table, columns={name: values[~tested] for name, values in table.columns.items()})
        known = label_matrix(part, label_names) if label_names else None
        features = fit_encoding(part, TableOptions(**options), known, label_names, left_out)
        schema = Schema(features, tuple(label_names), tuple(ids), table.delimiter, form)
    data = _as_described(table, schema)
    if uncertain is not None:
        certain = np.where(doubtful, UNCERTAIN[uncertain], data.labels)
        data = replace(data, labels=certain, uncertain=doubtful if uncertain == "self_trained" else None)
    if test is None:
        return data.with_split(np.flatnonzero(~tested), np.flatnonzero(tested))
    test_table = open_table(test, delimiter, schema.delimiter, encoding)
    if absent := [name for name in label_columns if name not in test_table.columns]:
        raise ValueError(f"test: expected a column for each label, got a table without the columns {absent}")
    test_table = _with_labels(test_table, schema)
    if missing_labels == "negative":
        with naming(test_table):
            test_table = _without_missing(test_table, label_names)
    return data.with_test(_as_described(test_table, schema))


def new_rows(
    source: str | PathLike | Any, schema: Schema, delimiter: str | None = None, *, labelled: bool = True
) -> MultilabelData:
    """Read new rows from a table by a schema; all rows become training rows.

    Labels without a column are NaN.

    Args:
        labelled: whether to read the labels; if not, all labels are NaN.

    Raises:
        ValueError: see :func:`open_table` and :class:`~lmbm_torch.data.tables.schema.Schema`.
    """
    table = open_table(source, delimiter, schema.delimiter)
    if labelled:
        return _as_described(_with_labels(table, schema), schema)
    left_out = {*schema.label_names, *(column.name for column in schema.label_form.columns)}
    kept = {name: each for name, each in table.columns.items() if name not in left_out}
    return _as_described(replace(table, columns=kept), schema)


def _with_labels(table: Table, schema: Schema) -> Table:
    with naming(table):
        return replace(table, columns=schema.label_form.applied(table.columns))


def _without_missing(table: Table, label_names: Sequence[str]) -> Table:
    labels = np.nan_to_num(label_matrix(table, label_names))
    return replace(table, columns={**table.columns, **dict(zip(label_names, labels.T, strict=True))})


def _as_described(table: Table, schema: Schema) -> MultilabelData:
    features, labels = schema.features(table), schema.labels(table)
    return without_split(table.name, features, labels, schema.label_names, schema.feature_names, schema)


def groups_of(table: Table, column: str) -> np.ndarray:
    """Return the group of each row, (rows,), as texts.

    Raises:
        ValueError: the table has no such column, or a row has no group.
    """
    if column not in table.columns:
        raise ValueError(f"groups: expected the name of a column of the table, got {column!r}")
    values = table.columns[column]
    if absent := int(is_missing(values).sum()):
        raise ValueError(f"groups: expected a group in each row, got {absent} empty cells in {column!r}")
    return np.array(as_texts(values))
