"""Label columns of any classes, converted to codes 0 … classes − 1 and back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from scipy import sparse

from lmbm_torch.checks import check_shape, is_missing
from lmbm_torch.data.features import numbered
from lmbm_torch.data.rows import own_values
from lmbm_torch.estimators.common.targets import declared_values

MISSING = -1


@dataclass(frozen=True, eq=False)
class LabelColumns:
    """The classes of each label.

    Args:
        names: names of the columns.
        classes: classes of each column, ascending or in the order of declared categories; 0 and 1 for a
            column of zeros and ones. If no column has more than two classes, each column gets two: a column
            with a single class gets the two of all columns together if there are two, else the class twice.
    """

    names: tuple[str, ...]
    classes: tuple[np.ndarray, ...]

    @classmethod
    def of(cls, y: Any) -> tuple[LabelColumns, np.ndarray]:
        """Return the label columns of ``y``, (instances, labels), and each value as the code of a class.

        NaN and None have the code ``MISSING``.

        Raises:
            ValueError: ``y`` has another shape; or a label has no known value, classes that cannot be sorted,
                or numbers that are not integers.
        """
        names, values, declared = _columns(y)
        known = [~is_missing(column) for column in values]
        found = [column[own] for column, own in zip(values, known, strict=True)]
        for name, own in zip(names, found, strict=True):
            if not len(own):
                raise ValueError(f"y: expected a known value of each label, got no known value of {name}")
            if own.dtype.kind == "f" and not (np.isfinite(own) & (own == np.round(own))).all():
                strange = own[~(np.isfinite(own) & (own == np.round(own)))]
                raise ValueError(f"y: expected integers as classes, got {strange[0]} in label {name}")
        classes = _classes(names, found, declared)
        columns = cls(names, classes)
        return columns, columns.encode("y", y, len(values[0]))

    @property
    def num_states(self) -> tuple[int, ...]:
        """Return the number of classes of each label."""
        return tuple(map(len, self.classes))

    @property
    def are_binary(self) -> bool:
        """Return whether every label has two values; the second value has the code 1."""
        return all(len(classes) == 2 for classes in self.classes)

    def decode(self, codes: np.ndarray) -> np.ndarray:
        """Convert codes (…, labels) to values.

        The array has the type object if a value is missing, or if labels have different types.

        Args:
            codes: codes of classes; ``MISSING`` and NaN become None.
        """
        missing = (codes == MISSING) | (codes != codes)
        codes = np.where(missing, 0, codes).astype(np.int64)
        columns = [classes[codes[..., label]] for label, classes in enumerate(self.classes)]
        kinds = {column.dtype.kind for column in columns}
        if len(kinds) > 1 and not kinds <= set("biuf"):
            columns = [column.astype(object) for column in columns]
        values = np.stack(columns, -1)
        return np.where(missing, cast(Any, None), values.astype(object)) if missing.any() else values

    def encode(self, name: str, values: Any, instances: int) -> np.ndarray:
        """Convert values (instances, labels) to codes; NaN and None become ``MISSING``.

        Raises:
            ValueError: the values have another shape, or a value did not occur in training.
        """
        _, columns, _ = _columns(values)
        check_shape(name, np.empty((len(columns[0]), len(columns))), instances, len(self.classes))
        codes = np.full((instances, len(columns)), MISSING)
        for label, (column, classes) in enumerate(zip(columns, self.classes, strict=True)):
            known = ~is_missing(column)
            is_class = column[known][:, None] == classes
            strange = ~is_class.any(1)
            if strange.any():
                raise ValueError(
                    f"{name}: expected classes {classes.tolist()} for label {self.names[label]}, "
                    f"got {column[known][strange][0]!r}"
                )
            codes[known, label] = is_class.argmax(1)
        return codes


def _columns(y: Any) -> tuple[tuple[str, ...], list[np.ndarray], list[Any]]:
    """Return the name, the values, and the declared categories (or None) of each column."""
    if hasattr(y, "columns"):
        check_shape("y", y, None, None)
        declared = declared_values(y) or [None] * y.shape[1]
        return tuple(map(str, y.columns)), [y[name].to_numpy() for name in y.columns], declared
    table = y.toarray() if sparse.issparse(y) else np.asarray(y)
    check_shape("y", table, None, None)
    return numbered("label", table.shape[1]), list(table.T), [None] * table.shape[1]


def _classes(
    names: Sequence[str], columns: Sequence[np.ndarray], declared: Sequence[Any]
) -> tuple[np.ndarray, ...]:
    """Return the classes of each label, see :func:`~lmbm_torch.data.rows.own_values`."""
    classes: list[Any] = [None] * len(names)
    for name, column in zip(names, columns, strict=True):
        try:
            sorted({*column.tolist()})
        except TypeError as mixed:
            raise ValueError(f"y: expected classes of one type, got several types in label {name}") from mixed
    are_texts = np.array([isinstance(column[0], str) for column in columns])
    for places in (np.flatnonzero(are_texts).tolist(), np.flatnonzero(~are_texts).tolist()):
        found = own_values([columns[at].tolist() for at in places], [declared[at] for at in places])
        for at, own in zip(places, found, strict=True):
            is_bit = all(isinstance(value, int | float) and value in (0, 1) for value in own)
            classes[at] = np.array([0, 1]) if is_bit else np.array(own, columns[at].dtype)
    if all(len(each) <= 2 for each in classes):
        classes = [each[[0, -1]] for each in classes]
    return tuple(classes)
