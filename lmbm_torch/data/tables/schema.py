"""The schema of a table, by which columns become features and labels: learned from training rows and kept."""

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
        encoding: of the features.
        label_names: names of the columns of labels, not empty; new rows may lack these columns.
        id_columns: columns that name the rows, repeated in predictions; not features.
        delimiter: between the values of the CSV file of training; None for other sources.
        label_form: the form of the columns of labels in the table of training.

    Raises:
        ValueError: no label, or a name more than once.

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
            raise ValueError(f"labels: expected to leave features and labels, got labels {self.label_names}")
        names = [*(column.name for column in self.columns), *self.label_names]
        if len(set(names)) < len(names):
            raise ValueError(f"columns: expected each name once, got {names}")

    @property
    def columns(self) -> tuple[NamedColumn, ...]:
        """Return the columns of the features."""
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
        """Return labels by :func:`label_matrix`; all NaN where the table lacks a column."""
        with naming(table):
            return label_matrix(table, self.label_names)


def label_matrix(table: Table, names: Sequence[str]) -> Float[np.ndarray, "rows labels"]:
    """Return columns as labels, float64: 0, 1, or NaN where missing; all NaN for a missing column.

    Raises:
        ValueError: values of no known form, see :class:`~lmbm_torch.data.tables.labels.LabelForm`.
    """
    absent = np.full(table.num_rows, np.nan)
    found = LabelForm(tuple(map(LabelColumn, names))).applied(table.columns)
    return np.column_stack([found.get(name, absent) for name in names])
