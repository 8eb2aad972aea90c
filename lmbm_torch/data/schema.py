"""How the columns of a table become features and labels: decided once, on training rows, and kept."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal

import numpy as np
from scipy.sparse import csc_array, hstack

from lmbm_torch.checks import check_shape
from lmbm_torch.data.dataset import Features, check_dense
from lmbm_torch.data.formats.attributes import TRUTH
from lmbm_torch.data.tables import Table, as_numbers, naming
from lmbm_torch.shapes import Bool, Float

Missing = Literal["refuse", "impute"]
Unknown = Literal["refuse", "zeros"]
# A column of texts of which more than this share of the rows have one of their own names the rows.
IDENTIFIER_SHARE = 0.5
FEW_CATEGORIES = 20
_TRUTH = {**TRUTH, "0": 0.0, "1": 1.0}


@dataclass(frozen=True)
class Column:
    """One column that features are made of.

    Args:
        name: of the column.
        categories: its texts, one feature each that is 1 where the row has it; None for a column of numbers,
            which are the feature.
        fill: what a missing value is taken for; None to refuse it.
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


@dataclass(frozen=True)
class Schema:
    """What a table must hold, and what becomes of it.

    Args:
        columns: of the features, at least one; those of a table that are not named here are passed over.
        label_names: names of the columns of labels, at least one, which new rows may lack.
        unknown: whether a text that is none of a column's categories is refused, or is none of them.
        sparse: make CSR features, which many categories need, instead of dense ones.

    Raises:
        ValueError: no column, no label, a name more than once, or ``unknown`` of another kind.
    """

    columns: tuple[Column, ...]
    label_names: tuple[str, ...]
    unknown: Unknown = "refuse"
    sparse: bool = False

    def __post_init__(self) -> None:
        names = [*(column.name for column in self.columns), *self.label_names]
        if not self.columns or not self.label_names:
            raise ValueError(f"labels: expected to leave features and labels, got labels {self.label_names}")
        if len(set(names)) < len(names):
            raise ValueError(f"columns: expected each name once, got {names}")
        if self.unknown not in ("refuse", "zeros"):
            raise ValueError(f"unknown: expected 'refuse' or 'zeros', got {self.unknown!r}")

    @property
    def feature_names(self) -> tuple[str, ...]:
        return tuple(name for column in self.columns for name in column.feature_names)

    def features(self, table: Table) -> Features:
        """Features of the table's rows, float64.

        Raises:
            ValueError: a column that is not there, holds texts instead of numbers, infinite numbers, missing
                values that the schema does not fill, or a text that is no category, where that is refused.
        """
        with naming(table):
            if absent := [column.name for column in self.columns if column.name not in table.columns]:
                raise ValueError(f"expected a column for each feature, found none named {absent}")
            if not self.sparse:
                num_features = sum(len(column.feature_names) for column in self.columns)
                check_dense("features", table.num_rows, num_features, "sparse=True keeps categories sparse")
            blocks = [self._block(column, table.columns[column.name]) for column in self.columns]
        return hstack(blocks, format="csr") if self.sparse else np.hstack(blocks)

    def labels(self, table: Table) -> Float[np.ndarray, "rows labels"]:
        """As :func:`label_matrix`, with all NaN for a column that the table has not."""
        with naming(table):
            return label_matrix(table, self.label_names)

    def state(self) -> dict[str, Any]:
        """In plain types, for a checkpoint."""
        return asdict(self)

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Schema:
        """What :meth:`state` describes.

        Raises:
            KeyError, TypeError, ValueError: it describes none.
        """
        columns = (
            Column(
                each["name"], None if each["categories"] is None else tuple(each["categories"]), each["fill"]
            )
            for each in state["columns"]
        )
        return cls(tuple(columns), tuple(state["label_names"]), state["unknown"], state["sparse"])

    def _block(self, column: Column, values: np.ndarray) -> Features:
        """The features of one column, (rows, features)."""
        if column.categories is not None:
            return self._indicators(column, values)
        numbers = _numbers(column, values)[:, None]
        return csc_array(numbers) if self.sparse else numbers

    def _indicators(self, column: Column, values: np.ndarray) -> Features:
        assert column.categories is not None
        texts = as_texts(values)
        absent = np.array([text is None for text in texts])
        _check_filled(column, absent)
        place: dict[Any, int] = {category: index for index, category in enumerate(column.categories)}
        codes = np.array([place.get(column.fill if text is None else text, -1) for text in texts])
        if self.unknown == "refuse" and (codes < 0).any():
            strange = sorted({str(texts[row]) for row in np.flatnonzero(codes < 0)})
            raise ValueError(
                f"column {column.name!r}: expected one of its {len(place)} categories, got {strange[:5]}; "
                "unknown='zeros' takes such a row as none of them"
            )
        known = np.flatnonzero(codes >= 0)
        shape = (len(codes), len(place))
        if self.sparse:
            return csc_array((np.ones(len(known)), (known, codes[known])), shape=shape)
        indicators = np.zeros(shape)
        indicators[known, codes[known]] = 1.0
        return indicators


def fit_schema(
    table: Table,
    label_names: Sequence[str],
    *,
    ignore: str | Sequence[str] = (),
    categorical: str | Sequence[str] = (),
    missing: Missing = "refuse",
    unknown: Unknown = "refuse",
    sparse: bool = False,
    rows: Bool[np.ndarray, " rows"] | None = None,
) -> Schema:
    """The schema of a training table: all columns but labels and ignored ones are features.

    Columns of texts have the categories that occur, in alphabetical order.

    Args:
        label_names: columns of labels.
        ignore: names or patterns (``id*``) of columns to leave out.
        categorical: names or patterns of columns of numbers that are categories, such as codes.
        missing: ``"refuse"``, or ``"impute"``: missing numbers are taken for the median and missing texts for
            the commonest category.
        unknown, sparse: as for :class:`Schema`.
        rows: those whose values the medians and commonest categories are of; all by default.

    Raises:
        ValueError: names or patterns of no column, missing values where they are refused, a column without
            any value, or one of texts that names the rows.
    """
    if missing not in ("refuse", "impute"):
        raise ValueError(f"missing: expected 'refuse' or 'impute', got {missing!r}")
    names = list(table.columns)
    left_out = {*label_names, *matching("ignore", ignore, names)}
    chosen = set(matching("categorical", categorical, names))
    used = np.ones(table.num_rows, np.bool_) if rows is None else rows
    check_shape("rows", used, table.num_rows)
    columns = []
    for name in names:
        if name in left_out:
            continue
        values = table.columns[name]
        fit = _fit_texts if values.dtype == object or name in chosen else _fit_numbers
        columns.append(fit(name, values, used, missing, name in chosen))
    return Schema(tuple(columns), tuple(label_names), unknown, sparse)


def matching(argument: str, patterns: str | Sequence[str], names: Sequence[str]) -> list[str]:
    """The names that are, or match, any of ``patterns`` (``tag_*``), in the order of the patterns.

    Raises:
        ValueError: a pattern without a match; the message suggests names that are close.
    """
    found: list[str] = []
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        # A name may itself hold what would be a wildcard.
        matches = [pattern] if pattern in names else [name for name in names if fnmatchcase(name, pattern)]
        if not matches:
            close = difflib.get_close_matches(pattern, names) or list(names[:10])
            raise ValueError(
                f"{argument}: expected names of columns, found none for {pattern!r}; there are {close}"
            )
        found += [name for name in matches if name not in found]
    return found


def label_matrix(table: Table, names: Sequence[str]) -> Float[np.ndarray, "rows labels"]:
    """Columns as labels, float64: 0, 1, or NaN where missing; all NaN for a column that is not there.

    Raises:
        ValueError: other values than 0, 1, true, false, yes and no.
    """
    absent = np.full(table.num_rows, np.nan)
    return np.column_stack([_truths(name, table.columns.get(name, absent)) for name in names])


def as_texts(values: np.ndarray) -> list[str | None]:
    """A column's values as texts, numbers in their shortest form; None where missing."""
    if values.dtype == object:
        return values.tolist()
    return [None if np.isnan(value) else f"{value:.15g}" for value in values.tolist()]


def _fit_numbers(name: str, values: np.ndarray, used: np.ndarray, missing: Missing, _: bool) -> Column:
    known = values[used & ~np.isnan(values)]
    if not len(known):
        raise ValueError(f"column {name!r}: expected values, found none; leave it out with ignore")
    return _filled(Column(name), float(np.median(known)), np.isnan(values), missing)


def _fit_texts(name: str, values: np.ndarray, used: np.ndarray, missing: Missing, chosen: bool) -> Column:
    texts = as_texts(values)
    absent = np.array([text is None for text in texts])
    categories = sorted({text for text in texts if text is not None})
    common = [text for text, is_used in zip(texts, used, strict=True) if is_used and text is not None]
    if not common:
        raise ValueError(f"column {name!r}: expected values, found none; leave it out with ignore")
    if not chosen and len(categories) > max(FEW_CATEGORIES, IDENTIFIER_SHARE * len(texts)):
        raise ValueError(
            f"column {name!r}: expected numbers or repeated texts, got {len(categories)} different texts "
            f"such as {categories[0]!r} in {len(texts)} rows; leave it out with ignore, or insist with "
            "categorical"
        )
    commonest, _ = min(Counter(common).items(), key=lambda item: (-item[1], item[0]))
    return _filled(Column(name, tuple(categories)), commonest, absent, missing)


def _filled(column: Column, fill: float | str, absent: np.ndarray, missing: Missing) -> Column:
    if missing == "impute":
        return Column(column.name, column.categories, fill)
    _check_filled(column, absent)
    return column


def _check_filled(column: Column, absent: np.ndarray) -> None:
    if column.fill is None and absent.any():
        raise ValueError(
            f"column {column.name!r}: expected no missing values, got {absent.sum()} in {len(absent)} rows, "
            f"first in row {int(absent.argmax())} (counted from 0); missing='impute' fills them in training"
        )


def _numbers(column: Column, values: np.ndarray) -> Float[np.ndarray, " rows"]:
    if values.dtype == object:
        # A frame may hold numbers as texts; else the text to show is one that is no number.
        values = as_numbers(values.tolist())
    if values.dtype == object:
        strange = next(text for text in values.tolist() if as_numbers([text]).dtype == object)
        raise ValueError(f"column {column.name!r}: expected numbers, got texts such as {strange!r}")
    absent = np.isnan(values)
    _check_filled(column, absent)
    if np.isinf(values).any():
        raise ValueError(
            f"column {column.name!r}: expected finite numbers, got {np.isinf(values).sum()} infinite"
        )
    filled = values.copy()
    filled[absent] = column.fill
    return filled


def _truths(name: str, values: np.ndarray) -> Float[np.ndarray, " rows"]:
    if values.dtype == object:
        strange = sorted(
            {text for text in values.tolist() if text is not None and text.lower() not in _TRUTH}
        )
        if not strange:
            return np.array([np.nan if text is None else _TRUTH[text.lower()] for text in values.tolist()])
    else:
        strange = sorted(set(values[~np.isin(values, (0, 1)) & ~np.isnan(values)].tolist()))
        if not strange:
            return values
    raise ValueError(
        f"label {name!r}: expected 0, 1, true, false, yes, no or a missing value, got {strange[:5]}"
    )
