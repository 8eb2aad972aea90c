"""Data frames of pandas, polars and Arrow, and data sets of Hugging Face, as tables."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from numbers import Number
from typing import Any

import numpy as np

from lmbm_torch.checks import is_absent
from lmbm_torch.data.tables.columns import Table
from lmbm_torch.data.tables.names import MISSING, as_booleans, check_names

# First letters of the names of categorical types in pandas, polars and Arrow.
_CATEGORIES = ("category", "categorical", "enum", "dictionary")
_LISTS = list, tuple, set, frozenset, np.ndarray


def is_frame(source: Any) -> bool:
    """Return whether an object has named columns: a data frame of pandas, polars, Arrow, or Hugging Face."""
    has_columns = hasattr(source, "columns") or _is_data_set(source)
    return has_columns and hasattr(source, "__getitem__") and not isinstance(source, dict)


def as_frame(source: Any) -> Any:
    """Return a data set of Hugging Face as a frame of pandas; other objects as given.

    Numbers of three or more classes, and lists of such numbers, become the names of the classes.
    """
    if not _is_data_set(source):
        return source
    frame = source.to_pandas()
    for column, kind in source.features.items():
        inner = getattr(kind, "feature", kind)
        names = getattr(inner, "names", ())
        if inner is not kind and names:
            sets = (each if each is None else [names[code] for code in each] for each in frame[column])
            frame[column] = [*sets]
        elif len(names) > 2:
            # -1 stands for a missing class.
            frame[column] = [None if not code >= 0 else names[int(code)] for code in frame[column]]
    return frame


def _is_data_set(source: Any) -> bool:
    return all(hasattr(source, name) for name in ("column_names", "features", "to_pandas"))


def column_names(frame: Any) -> list[str]:
    """Return the names of a data frame's columns; in Arrow, ``columns`` would be the columns themselves."""
    return [str(name) for name in getattr(frame, "column_names", frame.columns)]


def is_plain(frame: Any) -> bool:
    """Return whether a pandas data frame has only numbers and bools, without missing values."""
    kinds = {getattr(kind, "kind", "O") for kind in getattr(frame, "dtypes", ["O"])}
    return hasattr(frame, "isna") and kinds <= set("biuf") and not bool(frame.isna().to_numpy().any())


def open_frame(frame: Any) -> Table:
    """Return a data frame as a table, with numbers beside texts in a column as texts, and lists in JSON.

    Raises:
        ValueError: there is no row, a column has no name, two columns have the same name, or a column has
            values that are not numbers, texts or dates.
    """
    if isinstance(frame, Table):
        return frame
    frame = as_frame(frame)
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
            columns[name] = as_column(np.asarray(column.to_numpy()))
        except ValueError as error:
            faults.append(f"column {name!r}: {error}")
    if faults:
        raise ValueError("; ".join(faults))
    if not len(columns[names[0]]):
        raise ValueError("frame: expected at least one row, got none")
    return Table(type(frame).__name__, columns, categories=frozenset(categories))


def as_column(values: np.ndarray) -> np.ndarray:
    """Return values as numbers, dates or texts of a table; ValueError for others."""
    if values.dtype.kind in "biuf":
        return values.astype(np.float64)
    if values.dtype.kind == "M":
        return values.astype("datetime64[s]")
    if values.dtype.kind == "m":
        return np.where(np.isnat(values), np.nan, values / np.timedelta64(1, "s"))
    if values.dtype.kind not in "OUT":
        raise ValueError(f"expected a column of numbers, texts or dates, got {values.dtype}")
    found = [None if is_absent(value) else value for value in values.tolist()]
    kinds = {type(value) for value in found if value is not None}
    if all(issubclass(kind, Number | np.bool_) for kind in kinds):
        return np.array([np.nan if value is None else float(value) for value in found])
    if all(issubclass(kind, date) for kind in kinds):
        return np.array([_moment(value) for value in found], dtype="datetime64[s]")
    if all(issubclass(kind, _LISTS) for kind in kinds):
        lists = (value.tolist() if isinstance(value, np.ndarray) else value for value in found)
        texts = [None if each is None else json.dumps([*each], default=str) for each in lists]
        return np.array(texts, dtype=object)
    if not all(issubclass(kind, str | Number | np.bool_) for kind in kinds):
        raise ValueError(
            f"expected a column of numbers, texts or dates, got {sorted(kind.__name__ for kind in kinds)}; "
            "leave the column out with ignore"
        )
    return as_booleans([None if value is None else _text(value) for value in found])


def _text(value: Any) -> str | None:
    if not isinstance(value, str):
        return f"{float(value):.15g}"
    text = value.strip()
    return None if text in MISSING else text


def _moment(value: date | None) -> Any:
    """Convert a date to a type that NumPy reads, in UTC."""
    if isinstance(value, datetime) and value.tzinfo is not None:
        value = value.astimezone(UTC).replace(tzinfo=None)
    return np.datetime64("NaT") if value is None else np.datetime64(value, "s")
