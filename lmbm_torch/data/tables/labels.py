"""Columns of labels in every usual form as numbers 0 and 1.

No import of torch is needed, so that commands can check labels at once.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lmbm_torch.persistence.stored import Stored

WORDS = {"0": 0.0, "false": 0.0, "no": 0.0, "n": 0.0, "1": 1.0, "true": 1.0, "yes": 1.0, "y": 1.0}
"""Words that stand for 0 and 1, in small letters."""
MARKS = frozenset(("x", "✓", "✔"))
"""Signs that stand for 1 beside empty cells."""
SEPARATOR = ";"
"""Between names of labels in a cell, as predictions are written."""
# Values in a message.
_SHOWN = 5


@dataclass(frozen=True)
class LabelColumn(Stored):
    """A column of a table with one label, or with names of labels.

    Args:
        name: of the column.
        labels: the names that occurred in training; None for a column of one label.
        is_json: whether names stand in arrays of JSON.
    """

    name: str
    labels: tuple[str, ...] | None = None
    is_json: bool = False


@dataclass(frozen=True)
class LabelForm(Stored):
    """The form of the columns of labels in a table.

    Args:
        columns: in the order of the labels.
        words: two words for 0 and 1, besides :data:`WORDS`.
        separator: between names of labels.
        is_prefixed: whether the column stands in front of the names of labels: ``tags=red``.
    """

    columns: tuple[LabelColumn, ...] = ()
    words: tuple[str, str] | None = None
    separator: str = SEPARATOR
    is_prefixed: bool = False

    @property
    def label_names(self) -> tuple[str, ...]:
        """Return one name for each label."""
        return tuple(name for column in self.columns for name in self._names(column))

    def applied(self, columns: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the columns of a table with a column of 0, 1 and NaN for each label.

        Args:
            columns: numbers, or texts with None for missing values; columns of labels may be absent.

        Raises:
            ValueError: values of no known form, or names of labels that training did not have.
        """
        found = dict(columns)
        for column in self.columns:
            if column.name not in columns:
                continue
            values = found.pop(column.name)
            if column.labels is None:
                found[column.name] = _truths(column.name, values, self.words)
                continue
            sets = _sets(values, self.separator)
            strange = sorted({label for each in sets for label in each or ()} - {*column.labels})
            if strange:
                raise ValueError(
                    f"label {column.name!r}: expected names among {list(column.labels[:_SHOWN])} "
                    f"({len(column.labels)} in training), got {strange[:_SHOWN]}"
                )
            none = np.nan if column.is_json else 0.0
            for label, name in zip(column.labels, self._names(column), strict=True):
                found[name] = np.array([none if each is None else float(label in each) for each in sets])
        return found

    def _names(self, column: LabelColumn) -> tuple[str, ...]:
        if column.labels is None:
            return (column.name,)
        return tuple(f"{column.name}={label}" if self.is_prefixed else label for label in column.labels)


def fit_labels(
    columns: Mapping[str, np.ndarray],
    names: Sequence[str],
    words: Sequence[Any] | None = None,
    separator: str | None = None,
) -> LabelForm:
    """Return the form of columns of labels.

    A column has names of labels, not one label, if a cell has a semicolon between names or all cells are
    arrays of JSON; an empty cell then has no label, a missing array unknown labels. A column of marks (``x``)
    and empty cells has 0 in the empty ones.

    Args:
        names: of the columns of labels.
        words: two words or numbers for 0 and 1.
        separator: take all columns for names of labels with this text between names.

    Raises:
        ValueError: no column left for features, other ``words``, or no name in a column of names.
    """
    if {*columns} <= {*names}:
        raise ValueError(f"labels: expected to leave features and labels, got labels {tuple(names)}")
    if words is not None and (len(words) != 2 or words[0] == words[1] or isinstance(words, str)):
        raise ValueError(f"label_words: expected two different words, for 0 and for 1, got {words!r}")
    found = []
    for name in names:
        texts = [text for text in columns[name].tolist() if text is not None]
        is_json = bool(texts) and all(isinstance(text, str) and _is_array(text) for text in texts)
        has_names = any(isinstance(text, str) and SEPARATOR in text for text in texts)
        if not (is_json or has_names or separator is not None):
            found.append(LabelColumn(name))
            continue
        labels = {label for each in _sets(columns[name], separator or SEPARATOR) for label in each or ()}
        if not labels:
            raise ValueError(f"label {name!r}: expected names of labels, got none")
        found.append(LabelColumn(name, tuple(sorted(labels)), is_json))
    others = {*columns} - {column.name for column in found if column.labels is not None}
    inner = [label for column in found for label in column.labels or ()]
    is_prefixed = len(found) > 1 or not others.isdisjoint(inner)
    pair = None if words is None else (_text(words[0]), _text(words[1]))
    return LabelForm(tuple(found), pair, separator or SEPARATOR, is_prefixed)


def _is_array(text: str) -> bool:
    if not text.startswith("["):
        return False
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(found, list) and all(isinstance(each, str | int | float) for each in found)


def _sets(values: np.ndarray, separator: str) -> list[list[str] | None]:
    """Return the names of labels in each cell; None for a missing value."""
    sets: list[list[str] | None] = []
    for value in values.tolist():
        if value is None or value != value:
            sets.append(None)
        elif isinstance(value, str) and _is_array(value):
            sets.append([*map(_text, json.loads(value))])
        else:
            sets.append([part for part in map(str.strip, _text(value).split(separator)) if part])
    return sets


def _truths(name: str, values: np.ndarray, words: tuple[str, str] | None) -> np.ndarray:
    table = {**WORDS} if words is None else {**WORDS, words[0].lower(): 0.0, words[1].lower(): 1.0}
    texts = [None if value is None or value != value else _text(value).lower() for value in values.tolist()]
    if (known := {text for text in texts if text is not None}) and known <= MARKS - {*table}:
        return np.array([float(text is not None) for text in texts])
    truths = np.array([np.nan if text is None else table.get(text, _number(text)) for text in texts])
    strange = ~np.isin(truths, (0, 1)) & np.array([text is not None for text in texts], dtype=np.bool_)
    if strange.any():
        few = sorted(set(values[strange].tolist()), key=str)[:_SHOWN]
        raise ValueError(
            f"label {name!r}: expected 0, 1, true, false, yes, no, x beside empty cells, or a missing value, "
            f"got {few}; label_words=[absent,present] tells two other words, label_separator the text between"
            " names of labels in one column"
        )
    return truths


def _number(text: str) -> float:
    try:
        return float(text.replace("_", "?"))
    except ValueError:
        return -1.0


def _text(value: Any) -> str:
    return f"{value:.15g}" if isinstance(value, float) else str(value)
