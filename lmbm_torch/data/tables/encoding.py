"""The encoding of the columns of a table as features, which is learned from the training rows."""

from __future__ import annotations

import difflib
import re
import warnings
from collections import Counter
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import compress
from typing import Literal

import numpy as np
from scipy.sparse import csc_array, hstack

from lmbm_torch.checks import is_missing, level_of_caller
from lmbm_torch.data.features import Features, check_dense
from lmbm_torch.data.tables.columns import (
    Column,
    DateColumn,
    NamedColumn,
    Table,
    as_dates,
    as_texts,
)
from lmbm_torch.data.tables.labels import are_arrays
from lmbm_torch.data.tables.names import SHOWN, matching, numbers_of, split_numbers
from lmbm_torch.data.tables.pictures import check_image_encoder, fit_image_column
from lmbm_torch.data.tables.texts import (
    JoinedColumn,
    TextColumn,
    check_text_encoders,
    fit_text_column,
    is_sparse,
)
from lmbm_torch.persistence.stored import Stored
from lmbm_torch.shapes import Float

Missing = Literal["impute", "refuse"]
Unknown = Literal["warn", "refuse", "zeros"]
OddNumbers = Literal["refuse", "coerce"]
CHOICES = {
    "missing": ("impute", "refuse"),
    "unknown": ("warn", "refuse", "zeros"),
    "odd_numbers": ("refuse", "coerce"),
}
"""Values of the options that are words, the default first."""
# Texts count as repeated if at most REPEATED_SHARE of them are distinct. Other texts of one word identify the
# rows if there are more than FEW_CATEGORIES.
REPEATED_SHARE = 0.5
FEW_CATEGORIES = 20
# If a dense matrix of features would have more entries (1 GB), the features are sparse by default.
LARGEST_DENSE = 2**27
# A column can only be reported to leak a label that is 1 in at least so many rows, and 0 in as many.
LEAKING_ROWS = 10
_ID_NAME = re.compile(r"(?i)(.*[_ .-])?(id|uuid|guid|index|rowid|row_?n(r|o|umber)?)|.*[a-z]Id")


@dataclass(frozen=True)
class TableOptions:
    """Options for the columns of a table.

    Args:
        ignore: names or patterns (``id*``) of columns to leave out.
        categorical: names or patterns of columns to treat as categories, such as codes of any number.
        text: names or patterns of columns to treat as free text; features of words or characters are sparse.
        text_encoder: ``"tfidf"`` of words, ``"phrases"`` (tf-idf of words and pairs of neighbours),
            ``"characters"`` (tf-idf of 2 to 5 characters within words), ``"sentence:NAME"`` (embeddings by
            sentence-transformers) or ``"hf:NAME"`` (means over tokens by transformers), where NAME is a local
            folder or a model on the Hugging Face hub, also with ``@REVISION``; ``"sentence"`` (the model of
            the extra ``minilm``); or a list of several encoders, whose features are joined.
        image: names or patterns of columns with paths of images, relative to the folder of the table's file.
        image_encoder: ``"small_cnn"`` (a convolution with filters learned from the images), ``"pixels"``, or
            ``"timm:NAME"``, where NAME is a local folder or a model on the hub.
        image_size: height and width for ``"small_cnn"`` and ``"pixels"``.
        cache: folder that keeps embeddings of pretrained models; None for the platform's folder of caches.
        missing: ``"impute"`` to replace missing numbers and dates by the median, and missing texts by the
            most frequent category; or ``"refuse"`` to raise an error.
        unknown: effect of new columns, new categories, and texts among numbers or dates in new rows: a
            warning with counts (``"warn"``), an error (``"refuse"``) or nothing (``"zeros"``). Without an
            error, new columns are left out, all indicators are 0 for a new category, and a text is missing.
        odd_numbers: effect of texts in a training column in which more than half of the values are numbers:
            an error that names the texts (``"refuse"``); or ``"coerce"``, which reads ``1 000``, ``1,234``
            and ``50%`` as numbers and other texts as missing, with a warning.
        max_categories: largest number of categories of columns not in ``categorical``; rarer categories are
            ignored.
        sparse: True for CSR features, False for dense features; None for CSR if there are free texts or if
            dense features would take more than 1 GB.

    Raises:
        ValueError: an option has no such value.
    """

    ignore: str | Sequence[str] = ()
    categorical: str | Sequence[str] = ()
    text: str | Sequence[str] = ()
    text_encoder: str | Sequence[str] = "tfidf"
    image: str | Sequence[str] = ()
    image_encoder: str = "small_cnn"
    image_size: int = 32
    cache: str | None = None
    missing: Missing = "impute"
    unknown: Unknown = "warn"
    odd_numbers: OddNumbers = "refuse"
    max_categories: int = 1000
    sparse: bool | None = None

    def __post_init__(self) -> None:
        for name, words in CHOICES.items():
            if (value := getattr(self, name)) not in words:
                raise ValueError(f"{name}: expected one of {list(words)}, got {value!r}")
        if not isinstance(self.max_categories, int) or self.max_categories < 1:
            raise ValueError(f"max_categories: expected a number from 1, got {self.max_categories!r}")
        # Modules of text and image encoders are imported only if such an encoder is named.
        if self.text_encoder != TableOptions.text_encoder:
            check_text_encoders(self.text_encoder)
        if (self.image_encoder, self.image_size) != (TableOptions.image_encoder, TableOptions.image_size):
            check_image_encoder(self.image_encoder, self.image_size)


@dataclass(frozen=True)
class Encoding(Stored):
    """The columns that a table must have, and the features that are made from these columns.

    Args:
        columns: columns from which features are made; not empty.
        unknown: see :class:`TableOptions`.
        sparse: whether features are CSR instead of dense.
        left_out: names of the other columns of the training table.

    Raises:
        ValueError: there is no column, or ``unknown`` has no such value.
    """

    columns: tuple[NamedColumn, ...]
    unknown: Unknown = "warn"
    sparse: bool = False
    left_out: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.columns:
            raise ValueError("columns: expected at least one column to make features from, got none")
        if self.unknown not in CHOICES["unknown"]:
            raise ValueError(f"unknown: expected one of {list(CHOICES['unknown'])}, got {self.unknown!r}")

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Return the names of the features, such as ``age`` for numbers and ``town=Oslo`` for categories."""
        return tuple(name for column in self.columns for name in column.feature_names)

    def features(self, table: Table) -> Features:
        """Return the features of the table's rows, float64, dense or CSR.

        Raises:
            ValueError: a column is missing, missing values have no replacement, numbers are infinite, or
                ``unknown`` refuses something that training did not have; the message lists all faults.

        Warns:
            UserWarning: see ``unknown`` of :class:`TableOptions`.
        """
        names = [column.name for column in self.columns]
        new = [name for name in table.columns if name not in {*names, *self.left_out}]
        if absent := [name for name in names if name not in table.columns]:
            close = [each for name in absent for each in difflib.get_close_matches(name, new)]
            hint = f"; similar names are {close[:SHOWN]}" if close else ""
            raise ValueError(
                f"expected all columns of the training table, got a table without columns {absent}{hint}"
            )
        if not self.sparse:
            check_dense(
                "features", table.num_rows, len(self.feature_names), "sparse=True keeps categories sparse"
            )
        unknown, faults, blocks = [], [], []
        if new:
            unknown.append(f"columns: expected those of training, got {new[:SHOWN]} as well")
        for column in self.columns:
            try:
                blocks.append(column.features(column.values(table), unknown, self.sparse))
            except ValueError as error:
                faults.append(str(error))
        if self.unknown == "refuse" and unknown:
            faults += unknown
        if faults:
            raise ValueError("; ".join(faults))
        if self.unknown == "warn" and unknown:
            told = "; ".join(unknown)
            warnings.warn(
                f"{table.name}: {told}; all that is left out, and a text among numbers is missing",
                stacklevel=level_of_caller(),
            )
        return hstack(blocks, format="csr") if self.sparse else np.hstack(blocks)


def fit_encoding(
    table: Table,
    options: TableOptions,
    labels: Float[np.ndarray, "rows labels"] | None = None,
    label_names: Sequence[str] = (),
    left_out: Collection[str] = (),
) -> Encoding:
    """Learn the encoding of all columns of a training table, except for ``left_out`` and ``ignore``.

    A column of texts becomes a column of dates, if all texts are ISO dates; else of free texts, if few are
    repeated and most have two words; else of categories, if texts are repeated or few. Other texts identify
    the rows, and the column is left out.

    Args:
        labels: {0, 1, NaN}; a column from which a label can be read in every row is named in a warning.
        label_names: a name for each label.
        left_out: names of columns that are not features.

    Raises:
        ValueError: a name or a pattern fits no column, or columns are invalid; the message names all of them.

    Warns:
        UserWarning: a column seems to identify the rows or to leak a label, or another choice was made.
    """
    if labels is not None:
        is_known = ((labels == 1).sum(0) >= LEAKING_ROWS) & ((labels == 0).sum(0) >= LEAKING_ROWS)
        labels, label_names = labels[:, is_known], [*compress(label_names, is_known)]
    names = [*table.columns]
    left_out = {*left_out, *matching("ignore", options.ignore, names)}
    named = {
        part: set(matching(part, getattr(options, part), names)) for part in ("categorical", "text", "image")
    }
    notes, faults, columns = [], [], []
    for name in (name for name in names if name not in left_out):
        values = table.columns[name]
        try:
            if name in named["text"]:
                column = fit_text_column(name, values, options.text_encoder, options.cache)
            elif name in named["image"]:
                encoder = options.image_encoder, options.image_size, options.cache
                column = fit_image_column(table, name, *encoder)
            else:
                is_insisted = name in named["categorical"]
                is_categorical = is_insisted or name in table.categories
                column = _fitted(name, values, options, notes, is_categorical, is_insisted)
        except ValueError as error:
            faults.append(str(error))
            continue
        if column is None:
            continue
        columns.append(column)
        if labels is not None and (leaked := _leaked(column, values, labels)) is not None:
            notes.append(f"column {name!r} tells {label_names[leaked]!r} of every row")
    if faults or not columns:
        raise ValueError("; ".join(faults or ["expected a column to make features from, got none", *notes]))
    if notes:
        told = "; ".join(notes)
        warnings.warn(
            f"{table.name}: {told}; ignore, categorical and text change this", stacklevel=level_of_caller()
        )
    found = Encoding(tuple(columns), options.unknown)
    sparse = options.sparse
    if sparse is None or any(is_sparse(column) for column in columns if column.name in named["text"]):
        is_large = table.num_rows * len(found.feature_names) > LARGEST_DENSE
        of_texts = (column for column in columns if isinstance(column, TextColumn | JoinedColumn))
        sparse = is_large or any(map(is_sparse, of_texts))
    used = {column.name for column in columns}
    return replace(found, sparse=sparse, left_out=tuple(name for name in names if name not in used))


def _fitted(
    name: str,
    values: np.ndarray,
    options: TableOptions,
    notes: list[str],
    is_categorical: bool,
    is_insisted: bool,
) -> NamedColumn | None:
    """Return the fitted column; return None and add a note if the column is useless."""
    absent = is_missing(values)
    if absent.all():
        notes.append(f"column {name!r} has no values and is left out")
        return None
    written = options.odd_numbers == "coerce"
    column: NamedColumn | None
    if is_categorical:
        column = _categories(name, values, notes, None if is_insisted else options.max_categories)
    elif values.dtype == object:
        if (numbers := numbers_of(name, values, written, notes)) is not None:
            column = Column(name, None, float(np.median(numbers[~np.isnan(numbers)])), written=written)
        elif (dates := as_dates(values.tolist())).dtype != object:
            column = _dates(name, dates)
        else:
            column = _texts(name, values, options, notes)
    elif values.dtype.kind == "M":
        column = _dates(name, values)
    else:
        known = values[~absent]
        column = Column(name, None, float(np.median(known)), written=written)
        if _are_identifiers(name, known):
            notes.append(f"column {name!r} looks like names of the rows")
    if options.missing == "refuse" and isinstance(column, Column | DateColumn):
        column = replace(column, fill=None)
        column.check_missing(absent)
    return column


def _dates(name: str, dates: np.ndarray) -> DateColumn:
    known = dates[~np.isnat(dates)].astype(np.int64)
    return DateColumn(name, bool((known % 86_400).any()), int(np.median(known)))


def _texts(name: str, values: np.ndarray, options: TableOptions, notes: list[str]) -> NamedColumn | None:
    known = [text for text in as_texts(values) if text is not None]
    if are_arrays(known):
        expected = f"column {name!r}: expected numbers, texts or dates"
        raise ValueError(f"{expected}, got lists; leave the column out with ignore")
    count = len(set(known))
    has_words = 2 * sum(len(text.split()) > 1 for text in known) >= len(known)
    if has_words and count > min(REPEATED_SHARE * len(known), options.max_categories):
        # Fitting fails if each word occurs only once, as in names of rows.
        with suppress(ValueError):
            return fit_text_column(name, values, options.text_encoder, options.cache)
    if count <= max(FEW_CATEGORIES, REPEATED_SHARE * len(known)):
        return _categories(name, values, notes, options.max_categories)
    notes.append(
        f"column {name!r} looks like names of the rows, with {count} different texts in {len(values)} rows, "
        "and is left out"
    )
    return None


def _categories(name: str, values: np.ndarray, notes: list[str], most: int | None) -> Column:
    ranked = sorted(
        Counter(text for text in as_texts(values) if text is not None).items(),
        key=lambda item: (-item[1], item[0]),
    )
    if most is not None and len(ranked) > most:
        rows = sum(count for _, count in ranked[most:])
        notes.append(
            f"column {name!r} has {len(ranked)} categories, of which the rarest, in {rows} rows, "
            f"are none of the features, beyond max_categories={most}"
        )
    kept = tuple(sorted(text for text, _ in ranked[:most]))
    return Column(name, kept, ranked[0][0], has_more=len(kept) < len(ranked))


def _are_identifiers(name: str, known: np.ndarray) -> bool:
    """Return whether distinct whole numbers count the rows, or the column has a name such as ``id``."""
    if len(known) < FEW_CATEGORIES or (known != np.round(known)).any() or len(np.unique(known)) < len(known):
        return False
    counts_rows = bool((np.diff(known) == 1).all())
    return counts_rows or _ID_NAME.fullmatch(name) is not None


def _leaked(column: NamedColumn, values: np.ndarray, labels: Float[np.ndarray, "rows labels"]) -> int | None:
    """Return a label that a threshold or the categories of the column predict in every row; else None.

    A few rows are tried first, because most columns fail there.
    """
    left = np.arange(labels.shape[1])
    if column.kind == "categories":
        kinds, scores = np.unique(np.array([str(text) for text in as_texts(values)]), return_inverse=True)
        if len(kinds) > len(values) / LEAKING_ROWS:
            return None
    elif column.kind == "numbers":
        kinds, scores = None, split_numbers(values)[0] if values.dtype == object else values
    else:
        return None
    few = np.linspace(0, len(values) - 1, min(len(values), 200)).astype(np.int64)
    for rows in (few, slice(None)):
        part = labels[rows][:, left]
        left = left[_told(scores[rows], part == 1, part == 0, None if kinds is None else len(kinds))]
    return int(left[0]) if len(left) else None


def _told(scores: np.ndarray, on: np.ndarray, off: np.ndarray, num_kinds: int | None) -> np.ndarray:
    """Return a mask of the labels whose two values are separated by the scores of the rows."""
    if num_kinds is not None:
        ones = np.ones(len(scores))
        rows = csc_array((ones, (scores, np.arange(len(scores)))), shape=(num_kinds, len(scores)))
        both = ((rows @ on.astype(float)) > 0) & ((rows @ off.astype(float)) > 0)
        return np.asarray(~both.any(0))
    known, column = ~np.isnan(scores)[:, None], scores[:, None]
    lowest = [np.where(known & mask, column, np.inf).min(0) for mask in (on, off)]
    highest = [np.where(known & mask, column, -np.inf).max(0) for mask in (on, off)]
    return (lowest[0] > highest[1]) | (highest[0] < lowest[1])
