"""Conversion of columns of labels, in all usual forms, to numbers 0 and 1.

The module does not import torch, because commands must check labels quickly.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import compress
from math import inf, isfinite
from typing import TYPE_CHECKING, Any

import numpy as np

from lmbm_torch.data.tables.names import BOOLEANS, SHOWN
from lmbm_torch.persistence.stored import Stored

if TYPE_CHECKING:
    # Imported only for type checkers, because the module imports torch.
    from lmbm_torch.shapes import Bool, Int

WORDS = {"0": 0.0, "false": 0.0, "no": 0.0, "n": 0.0, "1": 1.0, "true": 1.0, "yes": 1.0, "y": 1.0}
"""Words that stand for 0 and 1, in small letters."""
MARKS = frozenset(("x", "✓", "✔"))
"""Signs that stand for 1 beside empty cells."""
SEPARATOR = ";"
"""Between names of labels in a cell, as predictions are written."""
UNCERTAIN = {"zeros": 0.0, "ones": 1.0, "ignored": np.nan, "self_trained": np.nan}
"""Conventions for uncertain labels, −1, and the value in place of −1 (Irvin et al. 2019, Section 4.1)."""
_UNCERTAIN = "-1"
# Smallest number of different texts in a column of classes.
FEWEST_CLASSES = 3


@dataclass(frozen=True)
class LabelColumn(Stored):
    """A column of a table with a label, with names of labels, or with classes.

    Args:
        name: name of the column.
        kind: form of the cells: ``"truths"`` (0 and 1, or words for them), ``"marks"`` (a mark or empty),
            ``"names"`` (names of labels with separators), ``"arrays"`` (the same in JSON), or ``"classes"``.
        labels: the names or classes in the training rows; empty for a column with a single label.
    """

    name: str
    kind: str = "truths"
    labels: tuple[str, ...] = ()


@dataclass(frozen=True)
class LabelForm(Stored):
    """The form of the columns of labels in a table.

    Args:
        columns: columns in the order of the labels.
        words: two words for 0 and 1, besides :data:`WORDS`.
        separator: text between names of labels.
        is_prefixed: whether names of labels begin with the column's (``tags=red``); always for classes.
        has_uncertain: whether −1 means an uncertain label.
    """

    columns: tuple[LabelColumn, ...] = ()
    words: tuple[str, str] | None = None
    separator: str = SEPARATOR
    is_prefixed: bool = False
    has_uncertain: bool = False

    @property
    def label_names(self) -> tuple[str, ...]:
        """Return the names of all labels."""
        return tuple(name for column in self.columns for name in self._names(column))

    @property
    def classes(self) -> tuple[tuple[str, ...], ...]:
        """Return the names of the labels of each column of classes; exactly one label is 1 in each row."""
        return tuple(self._names(column) for column in self.columns if column.kind == "classes")

    def applied(self, columns: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the columns of a table in which each label has a column of 0, 1 and NaN.

        Args:
            columns: numbers, or texts with None for missing values; columns of labels may be missing.

        Raises:
            ValueError: values have no known form, or training did not have the name of a label.
        """
        found = dict(columns)
        for column in self.columns:
            if column.name not in columns:
                continue
            values = found.pop(column.name)
            if not column.labels:
                found[column.name] = self._truths(column, values)
                continue
            sets = label_sets(values, None if column.kind == "classes" else self.separator)
            strange = sorted({label for each in sets for label in each or ()} - {*column.labels})
            if strange:
                raise ValueError(
                    f"label {column.name!r}: expected names of labels from training such as "
                    f"{list(column.labels[:SHOWN])} "
                    f"({len(column.labels)} in training), got {strange[:SHOWN]}"
                )
            none = 0.0 if column.kind == "names" else np.nan
            for label, name in zip(column.labels, self._names(column), strict=True):
                found[name] = np.array([none if each is None else float(label in each) for each in sets])
        return found

    def uncertain(self, columns: Mapping[str, np.ndarray]) -> Bool[np.ndarray, "rows labels"]:
        """Return a mask of the uncertain labels, which are −1 in the columns of a table."""
        masks = []
        for column in self.columns:
            values = columns[column.name].tolist()
            is_single = self.has_uncertain and not column.labels
            mask = [is_single and value == value and _text(value) == _UNCERTAIN for value in values]
            masks += [mask] * len(self._names(column))
        return np.array(masks, np.bool_).T

    def written(self, labels: Int[np.ndarray, "rows labels"]) -> dict[str, list[Any]]:
        """Convert label vectors in {0, 1} to columns of the original form: names of classes, or 0 and 1.

        If several classes of a column are 1, the separator joins the names.
        """
        found: dict[str, list[Any]] = {}
        places = iter(np.asarray(labels).T)
        for column in self.columns:
            part = {name: next(places).tolist() for name in self._names(column)}
            if column.kind == "classes":
                rows = zip(*part.values(), strict=True)
                part = {column.name: [self.separator.join(compress(column.labels, row)) for row in rows]}
            found |= part
        return found

    def _names(self, column: LabelColumn) -> tuple[str, ...]:
        if not column.labels:
            return (column.name,)
        is_prefixed = self.is_prefixed or column.kind == "classes"
        return tuple(f"{column.name}={label}" if is_prefixed else label for label in column.labels)

    def _truths(self, column: LabelColumn, values: np.ndarray) -> np.ndarray:
        table, words = {**WORDS}, self.words
        if words is not None:
            for truth, word in enumerate(map(str.lower, words)):
                # Booleans of a table are 1 and 0.
                table |= dict.fromkeys((word, BOOLEANS.get(word, word)), float(truth))
        if column.kind == "marks":
            table |= dict.fromkeys(MARKS, 1.0)
        if self.has_uncertain:
            table[_UNCERTAIN] = np.nan
        texts = [
            None if value is None or value != value else _text(value).lower() for value in values.tolist()
        ]
        none = 0.0 if column.kind == "marks" else np.nan
        truths = np.array([none if text is None else table.get(text, _number(text)) for text in texts])
        strange = ~(np.isin(truths, (0, 1)) | np.isnan(truths))
        if strange.any():
            few = sorted(set(values[strange].tolist()), key=str)[:SHOWN]
            raise ValueError(
                f"label {column.name!r}: expected 0, 1, true, false, yes, no, x with empty cells, or a "
                f"missing value, got {few}; for two other words set label_words=[absent,present], for names "
                "in a cell label_separator, for classes label_classes, and for -1 uncertain"
            )
        return truths


def fit_labels(
    columns: Mapping[str, np.ndarray],
    names: Sequence[str],
    words: Sequence[Any] | None = None,
    separator: str | None = None,
    classes: Collection[str] = (),
    uncertain: str | None = None,
) -> LabelForm:
    """Return the form of columns of labels.

    Cells hold names of labels if a cell has a semicolon between names, or all cells are arrays of JSON. Then
    an empty cell has no label, and the labels of a missing array are unknown. Cells hold classes if at least
    three different texts are repeated, none of which is a number or a word for 0 or 1; each class becomes a
    label. In a column of marks (``x``), empty cells are 0.

    Args:
        names: names of the columns of labels.
        words: two words or numbers for 0 and 1.
        separator: text between names of labels; if given, the cells of all columns hold names of labels.
        classes: names of columns that hold classes.
        uncertain: a key of :data:`UNCERTAIN` if −1 means an uncertain label, else None.

    Raises:
        ValueError: ``words`` are not two different words, ``uncertain`` is unknown, or a column has no names.
    """
    if words is not None and (len(words) != 2 or words[0] == words[1] or isinstance(words, str)):
        raise ValueError(f"label_words: expected two different words, for 0 and for 1, got {words!r}")
    if uncertain is not None and uncertain not in UNCERTAIN:
        raise ValueError(f"uncertain: expected one of {list(UNCERTAIN)} or None, got {uncertain!r}")
    pair = None if words is None else (_text(words[0]), _text(words[1]))
    found = []
    for name in names:
        kind = _kind(columns[name], pair, separator) if name not in classes else "classes"
        labels = set()
        if kind in ("names", "arrays", "classes"):
            sets = label_sets(columns[name], None if kind == "classes" else separator or SEPARATOR)
            labels = {label for each in sets for label in each or ()}
            if not labels:
                raise ValueError(f"label {name!r}: expected names of labels in the cells, got none")
        found.append(LabelColumn(name, kind, tuple(sorted(labels))))
    named = [column for column in found if column.kind in ("names", "arrays")]
    others = {*columns} - {column.name for column in found if column.labels}
    inner = [label for column in named for label in column.labels]
    is_prefixed = len(named) > 1 or not others.isdisjoint(inner)
    return LabelForm(tuple(found), pair, separator or SEPARATOR, is_prefixed, uncertain is not None)


def check_left(columns: Mapping[str, np.ndarray], names: Sequence[str]) -> None:
    """Raise ValueError if all columns are columns of labels."""
    if {*columns} <= {*names}:
        raise ValueError(f"labels: expected columns that are no labels, got only the labels {tuple(names)}")


def label_sets(values: np.ndarray, separator: str | None) -> list[list[str] | None]:
    """Return the names of labels in each cell; None for a missing value.

    Args:
        values: texts, arrays of JSON as texts, or numbers.
        separator: text between names; None if each cell has a single name.
    """
    sets: list[list[str] | None] = []
    for value in values.tolist():
        if value is None or value != value:
            sets.append(None)
        elif separator is None:
            sets.append([_text(value)])
        elif isinstance(value, str) and _is_array(value):
            sets.append([*map(_text, json.loads(value))])
        else:
            sets.append([part for part in map(str.strip, _text(value).split(separator)) if part])
    return sets


def are_truths(values: np.ndarray) -> bool:
    """Return whether all known values of a column are numbers or words for 0 and 1."""
    known = [value for value in values.tolist() if value is not None]
    return all(not isinstance(value, str) or value.lower() in WORDS for value in known)


def has_names(texts: Sequence[Any]) -> bool:
    """Return whether all values are arrays of JSON, or a text has a semicolon between names."""
    return are_arrays(texts) or any(isinstance(text, str) and SEPARATOR in text for text in texts)


def _kind(values: np.ndarray, words: tuple[str, str] | None, separator: str | None) -> str:
    texts = [text for text in values.tolist() if text is not None]
    if are_arrays(texts):
        return "arrays"
    if separator is not None or has_names(texts):
        return "names"
    own = {word.lower() for word in words or ()}
    different = {text.lower() for text in texts if isinstance(text, str)}
    if not different or not all(isinstance(text, str) for text in texts):
        return "truths"
    if different <= MARKS - own:
        return "marks"
    is_repeated = FEWEST_CLASSES <= len(different) <= len(texts) / 2
    are_others = different.isdisjoint({*WORDS, *MARKS, *own}) and all(
        _number(text) == inf for text in different
    )
    return "classes" if is_repeated and are_others else "truths"


def are_arrays(texts: Sequence[Any]) -> bool:
    """Return whether all values are arrays of JSON, at least one."""
    return bool(texts) and all(isinstance(text, str) and _is_array(text) for text in texts)


def _is_array(text: str) -> bool:
    if not text.startswith("["):
        return False
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(found, list) and all(isinstance(each, str | int | float) for each in found)


def _number(text: str) -> float:
    """Convert a text to a finite number; return infinity if the text is no finite number."""
    with suppress(ValueError):
        number = float(text.replace("_", "?"))
        return number if isfinite(number) else inf
    return inf


def _text(value: Any) -> str:
    return f"{value:.15g}" if isinstance(value, float) else str(value)
