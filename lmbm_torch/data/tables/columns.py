"""One column of a table as features: numbers as they are, texts as one indicator for each category."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from scipy.sparse import csc_array

from lmbm_torch.data.features import Features
from lmbm_torch.data.tables.table import as_numbers, as_texts, grouped_number, is_missing
from lmbm_torch.persistence.stored import Stored
from lmbm_torch.shapes import Bool, Float

Missing = Literal["refuse", "impute"]
Unknown = Literal["refuse", "zeros"]
# A column with more different texts than this share of its rows is taken for names of the rows.
IDENTIFIER_SHARE = 0.5
FEW_CATEGORIES = 20


@dataclass(frozen=True)
class Column(Stored):
    """One column that features are made of.

    Args:
        name: of the column.
        categories: its texts, one feature each that is 1 where the row has it; None for a column of numbers,
            which are the feature.
        fill: the value that replaces a missing one; None to refuse missing values.
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
        """The features of a column of values, ``(rows, features)``, float64, dense or CSC.

        Raises:
            ValueError: texts instead of numbers, infinite numbers, missing values without ``fill``, or texts
                that are no category, where these are refused.
        """
        if self.categories is not None:
            indicators = self._indicators(values, unknown)
            return indicators if sparse else indicators.toarray()
        numbers = self._numbers(values)[:, None]
        return csc_array(numbers) if sparse else numbers

    def check_missing(self, absent: Bool[np.ndarray, " rows"]) -> None:
        """Raise ValueError if values are missing and there is nothing to fill in."""
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
            # A frame may hold numbers as texts; else the text to show is one that is no number.
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
    """The column whose ``fill`` is the median, or the commonest category, of the rows ``used``.

    Categories are those that occur in any row, in alphabetical order.

    Args:
        missing: ``"impute"`` keeps ``fill``, ``"refuse"`` raises an error at a missing value.
        is_categorical: take numbers, too, as categories, and as many as there are.

    Raises:
        ValueError: no value, missing values where they are refused, texts that name the rows, or numbers with
            signs between their thousands.
    """
    absent = is_missing(values)
    known = values[used & ~absent]
    if not len(known):
        raise ValueError(f"column {name!r}: expected values, found none; leave it out with ignore")
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
