"""The schema of a table: how columns become features and labels, learned from the training rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from lmbm_torch.data.features import Features
from lmbm_torch.data.tables.columns import NamedColumn, Table, naming
from lmbm_torch.data.tables.encoding import Encoding
from lmbm_torch.data.tables.labels import LabelColumn, LabelForm
from lmbm_torch.persistence.stored import Stored
from lmbm_torch.shapes import Float


@dataclass(frozen=True)
class Schema(Stored):
    """The encoding of the columns of a table as features, and the names of the other columns.

    Args:
        encoding: encoding of the features.
        label_names: names of the columns of labels, not empty; new rows may lack these columns.
        id_columns: columns that identify the rows; predictions repeat the columns, which are no features.
        delimiter: delimiter of the CSV file of training; None for other sources.
        label_form: the form of the columns of labels in the training table.

    Raises:
        ValueError: there is no label, or a name occurs twice.

    Examples:
        >>> import pandas as pd
        >>> from lmbm_torch.data import read_table
        >>> frame = pd.DataFrame({"town": ["Rome", "Oslo", "Rome"], "age": [3, 5, 8], "sunny": [1, 0, 1]})
        >>> read_table(frame, ["sunny"]).schema.feature_names
        ('town=Oslo', 'town=Rome', 'age')
    """

    encoding: Encoding
    label_names: tuple[str, ...]
    id_columns: tuple[str, ...] = ()
    delimiter: str | None = field(default=None, compare=False)
    label_form: LabelForm = field(default_factory=LabelForm)

    def __post_init__(self) -> None:
        if not self.label_names:
            raise ValueError(f"labels: expected at least one label, got {self.label_names}")
        names = [*(column.name for column in self.columns), *self.label_names]
        if len(set(names)) < len(names):
            raise ValueError(f"columns: expected distinct names, got {names}")

    @property
    def columns(self) -> tuple[NamedColumn, ...]:
        """Return the columns from which features are made."""
        return self.encoding.columns

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Return the names of the features."""
        return self.encoding.feature_names

    def features(self, table: Table) -> Features:
        """Return the features of the table's rows, see :meth:`Encoding.features`."""
        others = {*self.label_names, *self.id_columns} - {column.name for column in self.columns}
        known = {name: values for name, values in table.columns.items() if name not in others}
        with naming(table):
            return self.encoding.features(replace(table, columns=known))

    def labels(self, table: Table) -> Float[np.ndarray, "rows labels"]:
        """Return the labels of the table's rows, see :func:`label_matrix`; NaN if a column is missing."""
        with naming(table):
            return label_matrix(table, self.label_names)


def label_matrix(table: Table, names: Sequence[str]) -> Float[np.ndarray, "rows labels"]:
    """Return columns as labels, float64: 0, 1, or NaN for a missing value or a missing column.

    Raises:
        ValueError: values have no known form, see :class:`~lmbm_torch.data.tables.labels.LabelForm`.
    """
    absent = np.full(table.num_rows, np.nan)
    found = LabelForm(tuple(map(LabelColumn, names))).applied(table.columns)
    return np.column_stack([found.get(name, absent) for name in names])
