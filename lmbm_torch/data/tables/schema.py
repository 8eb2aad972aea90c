"""The schema of a table, by which columns become features and labels: learned from training rows and kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from scipy.sparse import hstack

from lmbm_torch.data.features import Features, check_dense
from lmbm_torch.data.tables.columns import TRUTH, Column, Missing, Table, Unknown, fit_column, naming
from lmbm_torch.data.tables.labels import LabelForm, matching
from lmbm_torch.data.tables.texts import TextColumn, fit_text_column
from lmbm_torch.persistence.stored import Stored
from lmbm_torch.shapes import Bool, Float

_TRUTH = {**TRUTH, "0": 0.0, "1": 1.0}


@dataclass(frozen=True)
class TableOptions:
    """Options for the columns of a table.

    Args:
        ignore: names or patterns (``id*``) of columns to leave out.
        categorical: names or patterns of columns of numeric categories, such as codes.
        missing: ``"refuse"``, or ``"impute"``, which replaces missing numbers by the median and missing texts
            by the most frequent category.
        unknown, sparse: see :class:`Schema`.
        text: names or patterns of columns of free text, whose words are features, always sparse.
        id_columns: see :class:`Schema`.
    """

    ignore: str | Sequence[str] = ()
    categorical: str | Sequence[str] = ()
    text: str | Sequence[str] = ()
    id_columns: str | Sequence[str] = ()
    missing: Missing = "refuse"
    unknown: Unknown = "refuse"
    sparse: bool = False


@dataclass(frozen=True)
class Schema(Stored):
    """The required columns of a table, and the features and labels made from these columns.

    Args:
        columns: of the features, not empty; other columns of a table are ignored.
        label_names: names of the columns of labels, not empty; new rows may lack these columns.
        unknown: the effect of a text outside the categories of a column: ``"refuse"`` raises an error,
            ``"zeros"`` makes all indicators of the column 0 in the row.
        sparse: make CSR features, which many categories need, instead of dense features.
        id_columns: columns that name the rows, repeated in predictions; not features.
        delimiter: between the values of the CSV file of training; None for other sources.
        label_form: the form of the columns of labels in the table of training.

    Raises:
        ValueError: no column, no label, a name more than once, or another value of ``unknown``.

    Examples:
        >>> import pandas as pd
        >>> from lmbm_torch.data import read_table
        >>> frame = pd.DataFrame({"town": ["Rome", "Oslo", "Rome"], "age": [3, 5, 8], "sunny": [1, 0, 1]})
        >>> read_table(frame, ["sunny"]).schema.feature_names
        ('town=Oslo', 'town=Rome', 'age')
    """

    columns: tuple[Column | TextColumn, ...]
    label_names: tuple[str, ...]
    unknown: Unknown = "refuse"
    sparse: bool = False
    id_columns: tuple[str, ...] = ()
    delimiter: str | None = field(default=None, compare=False)
    label_form: LabelForm = field(default_factory=LabelForm)

    def __post_init__(self) -> None:
        names = [*(column.name for column in self.columns), *self.label_names]
        if not self.columns or not self.label_names:
            raise ValueError(f"labels: expected to leave features and labels, got labels {self.label_names}")
        if len(set(names)) < len(names):
            raise ValueError(f"columns: expected each name once, got {names}")
        if self.unknown not in ("refuse", "zeros"):
            raise ValueError(f"unknown: expected 'refuse' or 'zeros', got {self.unknown!r}")

    def with_unknown(self, unknown: Unknown) -> Schema:
        """Return the schema with another effect of texts outside the categories."""
        return replace(self, unknown=unknown)

    @property
    def feature_names(self) -> tuple[str, ...]:
        return tuple(name for column in self.columns for name in column.feature_names)

    def features(self, table: Table) -> Features:
        """Features of the table's rows, float64.

        Raises:
            ValueError: a column that is not there, holds texts instead of numbers, infinite numbers, missing
                values without a replacement, or a text outside the categories, if refused.
        """
        with naming(table):
            if absent := [column.name for column in self.columns if column.name not in table.columns]:
                raise ValueError(f"expected a column for each feature, got none named {absent}")
            if not self.sparse:
                remedy = "sparse=True keeps categories sparse"
                check_dense("features", table.num_rows, len(self.feature_names), remedy)
            blocks = [
                column.features(table.columns[column.name], self.unknown, self.sparse)
                for column in self.columns
            ]
        return hstack(blocks, format="csr") if self.sparse else np.hstack(blocks)

    def labels(self, table: Table) -> Float[np.ndarray, "rows labels"]:
        """Return labels by :func:`label_matrix`; all NaN where the table lacks a column."""
        with naming(table):
            return label_matrix(table, self.label_names)


def fit_schema(
    table: Table, label_names: Sequence[str], options: TableOptions, rows: Bool[np.ndarray, " rows"]
) -> Schema:
    """Return the schema of a training table: all columns but labels and ignored columns are features.

    The categories of a column of texts are all occurring texts, in alphabetical order.

    Args:
        label_names: columns of labels.
        rows: mask of the rows from which medians and most frequent categories are taken.

    Raises:
        ValueError: names or patterns of no column; missing values if refused; a column without any value; a
            column of texts that names the rows.
    """
    if options.missing not in ("refuse", "impute"):
        raise ValueError(f"missing: expected 'refuse' or 'impute', got {options.missing!r}")
    names = [*table.columns]
    ids = matching("id_columns", options.id_columns, names)
    left_out = {*label_names, *ids, *matching("ignore", options.ignore, names)}
    chosen = set(matching("categorical", options.categorical, names))
    texts = set(matching("text", options.text, names))
    columns = (
        fit_text_column(name, values, rows)
        if name in texts
        else fit_column(name, values, rows, options.missing, name in chosen)
        for name, values in table.columns.items()
        if name not in left_out
    )
    is_sparse = options.sparse or bool(texts - left_out)
    return Schema(tuple(columns), tuple(label_names), options.unknown, is_sparse, tuple(ids), table.delimiter)


def label_matrix(table: Table, names: Sequence[str]) -> Float[np.ndarray, "rows labels"]:
    """Return columns as labels, float64: 0, 1, or NaN where missing; all NaN for a missing column.

    Raises:
        ValueError: values other than 0, 1, true, false, yes and no.
    """
    absent = np.full(table.num_rows, np.nan)
    return np.column_stack([_truths(name, table.columns.get(name, absent)) for name in names])


def _truths(name: str, values: np.ndarray) -> Float[np.ndarray, " rows"]:
    truths = values
    if values.dtype == object:
        texts = values.tolist()
        truths = np.array([np.nan if text is None else _TRUTH.get(text.lower(), -1) for text in texts])
    strange = ~np.isin(truths, (0, 1)) & ~np.isnan(truths)
    if strange.any():
        few = sorted(set(values[strange].tolist()))[:5]
        raise ValueError(f"label {name!r}: expected 0, 1, true, false, yes, no or a missing value, got {few}")
    return truths
