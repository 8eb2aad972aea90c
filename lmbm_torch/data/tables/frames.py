"""Data frames of pandas, polars and Arrow as tables."""

from __future__ import annotations

from datetime import UTC, date, datetime
from numbers import Number
from typing import Any

import numpy as np

from lmbm_torch.checks import is_absent
from lmbm_torch.data.tables.columns import Table
from lmbm_torch.data.tables.names import MISSING, check_names
from lmbm_torch.data.tables.numbers import as_booleans

# Names of the types of categories in pandas, polars and Arrow, by their first letters.
_CATEGORIES = ("category", "categorical", "enum", "dictionary")


def is_frame(source: Any) -> bool:
    """Return whether an object has named columns, as data frames of pandas, polars and Arrow have."""
    return hasattr(source, "columns") and hasattr(source, "__getitem__") and not isinstance(source, dict)


def column_names(frame: Any) -> list[str]:
    """Return the names of a frame's columns; ``columns`` of Arrow are the columns themselves."""
    return [str(name) for name in getattr(frame, "column_names", frame.columns)]


def is_plain(frame: Any) -> bool:
    """Return whether the types of a pandas frame are numbers and bools alone, without a missing value."""
    kinds = {getattr(kind, "kind", "O") for kind in getattr(frame, "dtypes", ["O"])}
    return hasattr(frame, "isna") and kinds <= set("biuf") and not bool(frame.isna().to_numpy().any())


def open_frame(frame: Any) -> Table:
    """Return a data frame as a table, with numbers beside texts in a column as texts.

    Raises:
        ValueError: no row, columns without a name or of the same name, or a column of other values than
            numbers, texts and dates.
    """
    if isinstance(frame, Table):
        return frame
    names = column_names(frame)
    check_names(names)
    columns, categories, faults = {}, [], []
    for name, key in zip(names, getattr(frame, "column_names", frame.columns), strict=True):
        column = frame[key]
        kind = str(getattr(column, "type", getattr(column, "dtype", ""))).lower()
        if kind.startswith(_CATEGORIES):
            categories.append(name)
        if kind.startswith("dictionary"):
            column = column.cast(column.type.value_type)
        try:
            columns[name] = _from_array(np.asarray(column.to_numpy()))
        except ValueError as error:
            faults.append(f"column {name!r}: {error}")
    if faults:
        raise ValueError("; ".join(faults))
    if not len(columns[names[0]]):
        raise ValueError("frame: expected at least one row, got none")
    return Table(type(frame).__name__, columns, categories=frozenset(categories))


def _from_array(values: np.ndarray) -> np.ndarray:
    if values.dtype.kind in "biuf":
        return values.astype(np.float64)
    if values.dtype.kind == "M":
        return values.astype("datetime64[s]")
    if values.dtype.kind == "m":
        return np.where(np.isnat(values), np.nan, values / np.timedelta64(1, "s"))
    if values.dtype.kind not in "OUT":
        raise ValueError(f"expected numbers, texts or dates, got {values.dtype}")
    found = [None if is_absent(value) else value for value in values.tolist()]
    kinds = {type(value) for value in found if value is not None}
    if all(issubclass(kind, Number | np.bool_) for kind in kinds):
        return np.array([np.nan if value is None else float(value) for value in found])
    if all(issubclass(kind, date) for kind in kinds):
        return np.array([_moment(value) for value in found], dtype="datetime64[s]")
    if not all(issubclass(kind, str | Number | np.bool_) for kind in kinds):
        raise ValueError(
            f"expected numbers, texts or dates, got {sorted(kind.__name__ for kind in kinds)}; leave the "
            "column out with ignore"
        )
    return as_booleans([None if value is None else _text(value) for value in found])


def _text(value: Any) -> str | None:
    if not isinstance(value, str):
        return f"{float(value):.15g}"
    text = value.strip()
    return None if text in MISSING else text


def _moment(value: date | None) -> Any:
    """Return a date as NumPy takes it, in coordinated universal time."""
    if isinstance(value, datetime) and value.tzinfo is not None:
        value = value.astimezone(UTC).replace(tzinfo=None)
    return np.datetime64("NaT") if value is None else np.datetime64(value, "s")
