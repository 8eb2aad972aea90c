"""Tables with named columns, and the features that columns of numbers, categories or dates give."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from scipy.sparse import csc_array

from lmbm_torch.checks import is_missing
from lmbm_torch.data.features import Features
from lmbm_torch.data.tables.names import BOOLEANS, SHOWN, split_numbers, written_numbers
from lmbm_torch.persistence.stored import Stored
from lmbm_torch.shapes import Bool, Float

# Seconds in a mean year of the Gregorian calendar.
YEAR = 31_556_952
_DATE = re.compile(r"\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?Z?)?")


@dataclass(frozen=True, eq=False)
class Table:
    """A table of named columns of one length.

    Args:
        name: name for messages and reports.
        columns: columns by name: numbers as float64 with NaN for missing values, texts as objects with None,
            or dates as ``datetime64[s]`` with NaT.
        delimiter: delimiter of the CSV file from which the table was read.
        categories: names of the columns whose type in a data frame is a type of categories.
        folder: folder of the file from which the table was read; relative paths in columns start there.
    """

    name: str
    columns: Mapping[str, np.ndarray]
    delimiter: str | None = None
    categories: frozenset[str] = frozenset()
    folder: str | None = None

    @property
    def num_rows(self) -> int:
        return len(next(iter(self.columns.values())))

    @property
    def is_numeric(self) -> bool:
        """Return whether all columns are numbers without missing values."""
        columns = self.columns.values()
        return not self.categories and all(
            values.dtype.kind == "f" and not np.isnan(values).any() for values in columns
        )


@contextmanager
def naming(table: Table) -> Iterator[None]:
    """Add the name of the table to a ValueError that is raised in the context."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{table.name}: {error}") from error


def as_dates(texts: Sequence[str | None]) -> np.ndarray:
    """Convert ISO dates to ``datetime64[s]``, None to NaT, if all texts are dates; else return the texts."""
    try:
        if not all(text is None or _DATE.fullmatch(text) for text in texts):
            raise ValueError
        plain = ["NaT" if text is None else text.rstrip("Z").replace(" ", "T") for text in texts]
        return np.array(plain, dtype="datetime64[s]")
    except ValueError:
        return np.array(texts, dtype=object)


def as_texts(values: np.ndarray) -> list[str | None]:
    """Return the values of a column as texts, numbers in the shortest form; None for missing values."""
    if values.dtype == object:
        return values.tolist()
    if values.dtype.kind == "M":
        return [None if text == "NaT" else text for text in values.astype(str).tolist()]
    return [None if np.isnan(value) else f"{value:.15g}" for value in values.tolist()]


class NamedColumn(Stored, ABC):
    """A column from which features are made; base class of the columns of all kinds.

    Attributes:
        name: name of the column.
        kind: ``"numbers"``, ``"categories"``, ``"dates"``, ``"texts"`` or ``"images"``.
        fill: value that replaces missing values; None if missing values are refused.
    """

    kind: ClassVar[str]
    name: str
    fill: Any = None

    @property
    @abstractmethod
    def feature_names(self) -> tuple[str, ...]:
        """Return the names of the features."""

    def values(self, table: Table) -> np.ndarray:
        """Return the values of the column in a table."""
        return table.columns[self.name]

    @abstractmethod
    def features(self, values: np.ndarray, unknown: list[str], sparse: bool) -> Features:
        """Return the features of a column of values, ``(rows, features)``, float64, dense or CSC.

        Args:
            unknown: a list to which a sentence is added about values that the training part does not have.

        Raises:
            ValueError: values are missing and ``fill`` is None, or numbers are infinite.
        """

    def check_missing(self, absent: Bool[np.ndarray, " rows"]) -> None:
        """Raise ValueError if values are missing and ``fill`` is None."""
        if self.fill is None and absent.any():
            raise ValueError(
                f"column {self.name!r}: expected no missing values, got {absent.sum()} in {len(absent)} "
                f"rows, the first in row {int(absent.argmax())} (counted from 0); train with "
                "missing='impute' to replace them"
            )

    def _note(self, unknown: list[str], expected: str, texts: Sequence[Any], strange: np.ndarray) -> None:
        """Add to ``unknown`` a sentence about the unexpected texts in the rows of the mask ``strange``."""
        few = sorted({str(texts[row]) for row in np.flatnonzero(strange).tolist()})
        more = f" and {len(few) - SHOWN} others" if len(few) > SHOWN else ""
        rows = f"{int(strange.sum())} of {len(strange)} rows"
        unknown.append(f"column {self.name!r}: expected {expected}, got {few[:SHOWN]}{more} in {rows}")


@dataclass(frozen=True)
class Column(NamedColumn):
    """A column of numbers or categories.

    Args:
        name: name of the column.
        categories: texts, each with an indicator feature; None for a column of numbers, itself a feature.
        fill: value that replaces missing values; None if missing values are refused.
        has_more: whether training had more categories than the limit; then new categories lead to no warning.
        written: whether numbers may have the forms of :func:`written_numbers`.
    """

    name: str
    categories: tuple[str, ...] | None = None
    fill: float | str | None = None
    has_more: bool = False
    written: bool = False

    def __post_init__(self) -> None:
        if self.categories is not None and self.fill is not None and self.fill not in self.categories:
            raise ValueError(f"fill: expected one of {list(self.categories)}, got {self.fill!r}")

    @property
    def kind(self) -> str:
        return "numbers" if self.categories is None else "categories"

    @property
    def feature_names(self) -> tuple[str, ...]:
        if self.categories is None:
            return (self.name,)
        return tuple(f"{self.name}={category}" for category in self.categories)

    def features(self, values: np.ndarray, unknown: list[str], sparse: bool) -> Features:
        """Return the features of a column of values, see :class:`NamedColumn`.

        For a category that is not in ``categories``, all indicators are 0; a text among numbers is missing.
        """
        if self.categories is not None:
            indicators = self._indicators(values, unknown)
            return indicators if sparse else indicators.toarray()
        numbers = self._numbers(values, unknown)[:, None]
        return csc_array(numbers) if sparse else numbers

    def _indicators(self, values: np.ndarray, unknown: list[str]) -> Any:
        self.check_missing(is_missing(values))
        texts = as_texts(values)
        words = [*enumerate(self.categories or ())]
        # Of a file with further words; data frames have numbers for booleans.
        place: dict[Any, int] = {BOOLEANS.get(word.lower(), word): at for at, word in words}
        place |= {word: at for at, word in words}
        codes = np.array([place.get(self.fill if text is None else text, -1) for text in texts])
        if (codes < 0).any() and not self.has_more:
            self._note(unknown, f"one of its {len(words)} categories", texts, codes < 0)
        known = np.flatnonzero(codes >= 0)
        return csc_array((np.ones(len(known)), (known, codes[known])), shape=(len(codes), len(words)))

    def _numbers(self, values: np.ndarray, unknown: list[str]) -> Float[np.ndarray, " rows"]:
        if values.dtype == object:
            # A data frame may hold numbers as texts.
            texts = values
            values, odd = split_numbers(texts)
            if np.isnan(values).all():
                # Booleans beside other words, where training had booleans alone.
                for text in (text for text in odd if text.lower() in BOOLEANS):
                    values[texts == text] = float(BOOLEANS[text.lower()])
            for text, number in (written_numbers(odd) if self.written else {}).items():
                values[texts == text] = number
            strange = np.isnan(values) & ~is_missing(texts)
            if strange.any():
                self._note(unknown, "numbers", texts.tolist(), strange)
                if self.fill is None:
                    raise ValueError(unknown.pop())
        elif values.dtype.kind == "M":
            raise ValueError(f"column {self.name!r}: expected numbers, got dates")
        absent = np.isnan(values)
        self.check_missing(absent)
        if np.isinf(values).any():
            raise ValueError(
                f"column {self.name!r}: expected finite numbers, got {np.isinf(values).sum()} infinities"
            )
        filled = values.copy()
        filled[absent] = self.fill
        return filled


@dataclass(frozen=True)
class DateColumn(NamedColumn):
    """A column of dates, with features year (a fraction), month, day, weekday (0 is Monday) and hour.

    Args:
        name: name of the column.
        has_time: whether the time of the day is a feature.
        fill: date, in seconds since 1970, that replaces missing dates; None if missing dates are refused.
    """

    kind: ClassVar[str] = "dates"
    name: str
    has_time: bool = False
    fill: int | None = None

    @property
    def feature_names(self) -> tuple[str, ...]:
        parts = ("year", "month", "day", "weekday", *(("hour",) if self.has_time else ()))
        return tuple(f"{self.name}:{part}" for part in parts)

    def features(self, values: np.ndarray, unknown: list[str], sparse: bool) -> Features:
        """Return the features of dates, see :class:`NamedColumn`; a text that is no date is missing."""
        dates = values
        if values.dtype.kind != "M":
            texts = as_texts(values)
            each = [as_dates([text])[0] for text in texts]
            is_date = np.array([isinstance(date, np.datetime64) for date in each])
            if not is_date.all():
                self._note(unknown, "dates such as 2026-05-31", texts, ~is_date)
            dates = np.where(is_date, each, np.datetime64("NaT")).astype("datetime64[s]")
        absent = np.isnat(dates)
        self.check_missing(absent)
        dates = np.where(absent, np.datetime64(self.fill or 0, "s"), dates)
        days = dates.astype("datetime64[D]")
        seconds = dates.astype(np.int64)
        months = dates.astype("datetime64[M]")
        parts = [
            1970 + seconds / YEAR,
            months.astype(np.int64) % 12 + 1,
            (days - months.astype("datetime64[D]")).astype(np.int64) + 1,
            (days.astype(np.int64) + 3) % 7,
            *([seconds % 86_400 / 3600] if self.has_time else []),
        ]
        found = np.column_stack(parts).astype(np.float64)
        return csc_array(found) if sparse else found
