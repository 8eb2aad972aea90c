"""Label columns of any classes, converted to codes 0 … classes − 1 and back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from lmbm_torch.checks import check_shape
from lmbm_torch.data.features import numbered

MISSING = -1


@dataclass(frozen=True, eq=False)
class LabelColumns:
    """The classes of each label.

    Args:
        names: of the columns.
        classes: of each column, sorted; 0 and 1 for a column of zeros and ones.
    """

    names: tuple[str, ...]
    classes: tuple[np.ndarray, ...]

    @classmethod
    def of(cls, y: Any) -> tuple[LabelColumns, np.ndarray]:
        """Return the columns of targets (instances, labels), and the codes, ``MISSING`` for NaN and None.

        Raises:
            ValueError: targets of another shape, or a label without a known value or with classes that cannot
                be sorted.
        """
        names, values = _columns(y)
        classes, codes = [], np.full((len(values[0]), len(values)), MISSING)
        for label, column in enumerate(values):
            known = ~_is_missing(column)
            if not known.any():
                raise ValueError(f"y: expected a known value of each label, got none of {names[label]}")
            try:
                found, inverse = np.unique(column[known], return_inverse=True)
            except TypeError as mixed:
                raise ValueError(f"y: expected classes of one type, got several of {names[label]}") from mixed
            if found.dtype.kind in "biuf" and np.isin(found, (0, 1)).all():
                found, inverse = np.array([0, 1]), column[known].astype(np.int64)
            elif found.dtype.kind == "f" and not (np.isfinite(found) & (found == np.round(found))).all():
                raise ValueError(f"y: expected classes, got numbers such as {found[0]} of {names[label]}")
            classes.append(found)
            codes[known, label] = inverse
        return cls(names, tuple(classes)), codes

    @property
    def num_states(self) -> tuple[int, ...]:
        """Return the number of classes of each label."""
        return tuple(map(len, self.classes))

    @property
    def are_binary(self) -> bool:
        """Return whether every label is 0 or 1."""
        return all(classes.dtype.kind == "i" and classes.tolist() == [0, 1] for classes in self.classes)

    def decode(self, codes: np.ndarray) -> np.ndarray:
        """Return values (…, labels) from codes; of type object for labels of different types."""
        columns = [classes[codes[..., label]] for label, classes in enumerate(self.classes)]
        kinds = {column.dtype.kind for column in columns}
        if len(kinds) > 1 and not kinds <= set("biuf"):
            columns = [column.astype(object) for column in columns]
        return np.stack(columns, -1)

    def encode(self, name: str, values: Any, instances: int) -> np.ndarray:
        """Return codes of values (instances, labels), ``MISSING`` for NaN and None.

        Raises:
            ValueError: another shape, or a value without training instances.
        """
        _, columns = _columns(values)
        check_shape(name, np.empty((len(columns[0]), len(columns))), instances, len(self.classes))
        codes = np.full((instances, len(columns)), MISSING)
        for label, (column, classes) in enumerate(zip(columns, self.classes, strict=True)):
            known = ~_is_missing(column)
            strange = known & ~np.isin(column, classes)
            if strange.any():
                raise ValueError(
                    f"{name}: expected classes {classes.tolist()} of {self.names[label]}, "
                    f"got {column[strange][0]!r}"
                )
            codes[known, label] = np.searchsorted(classes, column[known].astype(classes.dtype))
        return codes


def _columns(y: Any) -> tuple[tuple[str, ...], list[np.ndarray]]:
    if hasattr(y, "columns"):
        check_shape("y", y, None, None)
        return tuple(map(str, y.columns)), [y[name].to_numpy() for name in y.columns]
    table = y.toarray() if sparse.issparse(y) else np.asarray(y)
    check_shape("y", table, None, None)
    return numbered("label", table.shape[1]), list(table.T)


def _is_missing(column: np.ndarray) -> np.ndarray:
    if column.dtype.kind == "f":
        return np.isnan(column)
    if column.dtype.kind == "O":
        return np.array([value is None or value != value for value in column])
    return np.zeros(len(column), bool)
