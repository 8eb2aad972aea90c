"""Named columns of a table, and the features of a column."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from scipy.sparse import csc_array

from lmbm_torch.data.features import Features
from lmbm_torch.persistence.stored import Stored
from lmbm_torch.shapes import Bool, Float

TRUTH = {"false": 0.0, "true": 1.0, "no": 0.0, "yes": 1.0}
"""Words that stand for 0 and 1."""


@dataclass(frozen=True, eq=False)
class Table:
    """A table of named columns of one length.

    Args:
        name: for messages and reports.
        columns: by name; numbers as float64 with NaN for a missing value, texts as objects with None.
        delimiter: between the values of the CSV file that the table was read from.
    """

    name: str
    columns: Mapping[str, np.ndarray]
    delimiter: str | None = None

    @property
    def num_rows(self) -> int:
        return len(next(iter(self.columns.values())))


@contextmanager
def naming(table: Table) -> Iterator[None]:
    """Name the table in a ValueError that is raised inside."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{table.name}: {error}") from error


def as_numbers(texts: Sequence[str | None], decimal_comma: bool = False) -> np.ndarray:
    """Convert texts to numbers, NaN for None, if all texts are numbers; else return the texts, as objects.

    ``1_2``, which is a number in Python code, is a text.

    Args:
        decimal_comma: take ``1,5`` for a number, too, in a column without a point.
    """
    try:
        return np.array([np.nan if text is None else float(text.replace("_", "?")) for text in texts])
    except ValueError:
        known = [text for text in texts if text is not None]
        if decimal_comma and any("," in text for text in known) and not any("." in text for text in known):
            numbers = as_numbers([None if text is None else text.replace(",", ".") for text in texts])
            # Commas within texts stay.
            if numbers.dtype != object:
                return numbers
        return np.array(texts, dtype=object)


def grouped_number(texts: Sequence[str]) -> str | None:
    """Return the first number with separators of thousands if all texts are numbers; else None.

    ``1.234,5`` and ``1,234.5`` have separators of thousands. ``7`` may stand with either form, as may numbers
    with the same decimal sign.
    """
    for thousands, decimal in ((".", ","), (",", ".")):
        grouped = rf"\d{{1,3}}(?:\{thousands}\d{{3}})+"
        if all(re.fullmatch(rf"[+-]?(?:\d+|{grouped})(?:\{decimal}\d+)?", text) for text in texts):
            return next((text for text in texts if re.match(rf"[+-]?{grouped}", text)), None)
    return None


def as_texts(values: np.ndarray) -> list[str | None]:
    """Return the values of a column as texts, numbers in the shortest form; None where missing."""
    if values.dtype == object:
        return values.tolist()
    return [None if np.isnan(value) else f"{value:.15g}" for value in values.tolist()]


def is_missing(values: np.ndarray) -> Bool[np.ndarray, " rows"]:
    """Return a mask of the missing values of a column."""
    if values.dtype == object:
        return np.array([value is None for value in values.tolist()])
    return np.isnan(values)


Missing = Literal["refuse", "impute"]
Unknown = Literal["refuse", "zeros"]
# Texts are taken for names of rows if the distinct texts exceed this share of the rows.
IDENTIFIER_SHARE = 0.5
FEW_CATEGORIES = 20


@dataclass(frozen=True)
class Column(Stored):
    """A column of numbers or categories from which features are made.

    Args:
        name: of the column.
        categories: texts with a feature each, 1 in rows of the text; None for a column of
            numbers, which is itself a feature.
        fill: replacement of missing values; None to refuse missing values.
    """

    name: str
    categories: tuple[str, ...] | None = None
    fill: float | str | None = None

    @property
    def feature_names(self) -> tuple[str, ...]:
        if self.categories is None:
            return (self.name,)
        return tuple(f"{self.name}={category}" for category in self.categories)

    def __post_init__(self) -> None:
        if self.categories is not None and self.fill is not None and self.fill not in self.categories:
            raise ValueError(f"fill: expected one of {list(self.categories)}, got {self.fill!r}")

    def features(self, values: np.ndarray, unknown: Unknown, sparse: bool) -> Features:
        """Return the features of a column of values, ``(rows, features)``, float64, dense or CSC.

        Raises:
            ValueError: texts instead of numbers; infinite numbers; missing values without ``fill``; texts
                that are no category, if such texts are refused.
        """
        if self.categories is not None:
            indicators = self._indicators(values, unknown)
            return indicators if sparse else indicators.toarray()
        numbers = self._numbers(values)[:, None]
        return csc_array(numbers) if sparse else numbers

    def check_missing(self, absent: Bool[np.ndarray, " rows"]) -> None:
        """Raise ValueError if values are missing and there is no ``fill``."""
        if self.fill is None and absent.any():
            raise ValueError(
                f"column {self.name!r}: expected no missing values, got {absent.sum()} in {len(absent)} "
                f"rows, first in row {int(absent.argmax())} (counted from 0); missing='impute' fills them in "
                "training"
            )

    def _indicators(self, values: np.ndarray, unknown: Unknown) -> Any:
        self.check_missing(is_missing(values))
        texts = as_texts(values)
        place: dict[Any, int] = {category: index for index, category in enumerate(self.categories or ())}
        codes = np.array([place.get(self.fill if text is None else text, -1) for text in texts])
        if unknown == "refuse" and (codes < 0).any():
            strange = sorted({str(texts[row]) for row in np.flatnonzero(codes < 0)})
            raise ValueError(
                f"column {self.name!r}: expected one of its {len(place)} categories, got {strange[:5]}; "
                "unknown='zeros' takes such a row as none of them"
            )
        known = np.flatnonzero(codes >= 0)
        return csc_array((np.ones(len(known)), (known, codes[known])), shape=(len(codes), len(place)))

    def _numbers(self, values: np.ndarray) -> Float[np.ndarray, " rows"]:
        if values.dtype == object:
            # A frame may hold numbers as texts; a message shows the first text that is no number.
            values = as_numbers(values.tolist())
        if values.dtype == object:
            strange = next(text for text in values.tolist() if as_numbers([text]).dtype == object)
            raise ValueError(f"column {self.name!r}: expected numbers, got texts such as {strange!r}")
        absent = np.isnan(values)
        self.check_missing(absent)
        if np.isinf(values).any():
            raise ValueError(
                f"column {self.name!r}: expected finite numbers, got {np.isinf(values).sum()} infinite"
            )
        filled = values.copy()
        filled[absent] = self.fill
        return filled


def fit_column(
    name: str, values: np.ndarray, used: Bool[np.ndarray, " rows"], missing: Missing, is_categorical: bool
) -> Column:
    """Return the column whose ``fill`` is the median, or the most frequent category, of the rows ``used``.

    Categories are all occurring texts in any row, in alphabetical order.

    Args:
        missing: ``"impute"`` keeps ``fill``, ``"refuse"`` raises an error at a missing value.
        is_categorical: take numbers, too, as categories, and any number of categories.

    Raises:
        ValueError: no value; missing values if refused; texts that name the rows; numbers with separators of
            thousands.
    """
    absent = is_missing(values)
    known = values[used & ~absent]
    if not len(known):
        raise ValueError(f"column {name!r}: expected values, got none; ignore={name!r} leaves the column out")
    if values.dtype != object and not is_categorical:
        column = Column(name, None, float(np.median(known)))
    else:
        categories = sorted(map(str, set(as_texts(values[~absent]))))
        if not is_categorical and (grouped := grouped_number(categories)) is not None:
            raise ValueError(
                f"column {name!r}: expected numbers without a sign between thousands, got {grouped!r}; write "
                "it as 1234.5, or insist on categories with categorical"
            )
        if not is_categorical and len(categories) > max(FEW_CATEGORIES, IDENTIFIER_SHARE * len(values)):
            raise ValueError(
                f"column {name!r}: expected numbers or repeated texts, got {len(categories)} different texts "
                f"such as {categories[0]!r} in {len(values)} rows; leave it out with ignore, take its words "
                "as features with text, or insist with categorical"
            )
        commonest, _ = min(Counter(as_texts(known)).items(), key=lambda item: (-item[1], str(item[0])))
        column = Column(name, tuple(categories), commonest)
    if missing == "refuse":
        column = replace(column, fill=None)
        column.check_missing(absent)
    return column
