"""A table of named columns, before any of it is a feature or a label."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from lmbm_torch.shapes import Bool

TRUTH = {"false": 0.0, "true": 1.0, "no": 0.0, "yes": 1.0}
"""Words that stand for 0 and 1."""


@dataclass(frozen=True, eq=False)
class Table:
    """Columns of one length.

    Args:
        name: for messages and reports.
        columns: by name; numbers as float64 with NaN for a missing one, texts as objects with None.
        delimiter: between the values of the CSV file that it was read from.
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
    """Numbers if all texts are numbers, with NaN for None; else the texts, as objects.

    ``1_2``, which is a number in Python's own code, is a text.

    Args:
        decimal_comma: take ``1,5`` for a number, too, in a column without a point.
    """
    try:
        return np.array([np.nan if text is None else float(text.replace("_", "?")) for text in texts])
    except ValueError:
        known = [text for text in texts if text is not None]
        if decimal_comma and any("," in text for text in known) and not any("." in text for text in known):
            return as_numbers([None if text is None else text.replace(",", ".") for text in texts])
        return np.array(texts, dtype=object)


def grouped_number(texts: Sequence[str]) -> str | None:
    """The first with signs between its thousands, of texts that are all numbers; None of others.

    ``1.234,5`` and ``1,234.5`` are such, beside ``7`` and what has the same sign in front of its decimals.
    """
    for thousands, decimal in ((".", ","), (",", ".")):
        grouped = rf"\d{{1,3}}(?:\{thousands}\d{{3}})+"
        if all(re.fullmatch(rf"[+-]?(?:\d+|{grouped})(?:\{decimal}\d+)?", text) for text in texts):
            return next((text for text in texts if re.match(rf"[+-]?{grouped}", text)), None)
    return None


def as_texts(values: np.ndarray) -> list[str | None]:
    """A column's values as texts, numbers in their shortest form; None where missing."""
    if values.dtype == object:
        return values.tolist()
    return [None if np.isnan(value) else f"{value:.15g}" for value in values.tolist()]


def is_missing(values: np.ndarray) -> Bool[np.ndarray, " rows"]:
    """Which of a column's values are missing."""
    if values.dtype == object:
        return np.array([value is None for value in values.tolist()])
    return np.isnan(values)
