"""The encoding of the columns of a table as features: learned from training rows, and kept."""

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
# Texts are repeated if the distinct texts are at most this share of the rows; other texts of one word name
# the rows if they are more than this number.
REPEATED_SHARE = 0.5
FEW_CATEGORIES = 20
# Numbers of a dense matrix of features above which the matrix is sparse by itself, about 1 GB.
LARGEST_DENSE = 2**27
# Rows with and rows without a label below which a column is not said to leak the label.
LEAKING_ROWS = 10
_ID_NAME = re.compile(r"(?i)(.*[_ .-])?(id|uuid|guid|index|rowid|row_?n(r|o|umber)?)|.*[a-z]Id")


@dataclass(frozen=True)
class TableOptions:
    """Options for the columns of a table.

    Args:
        ignore: names or patterns (``id*``) of columns to leave out.
        categorical: names or patterns of columns of categories, such as codes, of any number.
        text: names or patterns of columns of free text; features of words or characters are always sparse.
        text_encoder: ``"tfidf"`` of words, ``"phrases"`` (tf-idf of words and pairs of neighbours),
            ``"characters"`` (tf-idf of 2 to 5 characters within words),
            ``"sentence:NAME"`` or ``"hf:NAME"`` (embeddings by sentence-transformers, and means over tokens
            by transformers, of models on the Hugging Face hub, at ``@REVISION``, or in local folders),
            ``"sentence"`` (the model of the extra ``minilm``); or several, beside each other.
        image: names or patterns of columns of paths of images; relative paths begin at the folder of the
            table's file.
        image_encoder: ``"small_cnn"`` (a convolution with filters learned from the images), ``"pixels"``, or
            ``"timm:NAME"`` of the hub or a local folder.
        image_size: height and width for ``"small_cnn"`` and ``"pixels"``.
        cache: folder of embeddings of pretrained models, by content; None for the platform's folder.
        missing: ``"impute"``, which replaces missing numbers and dates by the median and missing texts by the
            most frequent category; or ``"refuse"``.
        unknown: the effect of new columns, new categories, and of texts among numbers or dates in new rows:
            a warning with counts (``"warn"``), an error (``"refuse"``) or nothing (``"zeros"``). Without an
            error new columns are left out, a new category is none of the features, and a text is missing.
        odd_numbers: the effect of texts in a training column of which more than half the values are numbers:
            an error that names the texts (``"refuse"``); or ``"coerce"``, which takes ``1 000``, ``1,234``
            and ``50%`` for numbers and other texts for missing, with a warning.
        max_categories: largest number of categories of a column that is not named in ``categorical``; rarer
            categories are none of the features.
        sparse: make CSR features, or dense ones; None for CSR if there are texts or a dense matrix would take
            more than 1 GB.

    Raises:
        ValueError: another value.
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
        # Modules of encoders beyond the defaults are entered for tables with such columns alone.
        if self.text_encoder != TableOptions.text_encoder:
            check_text_encoders(self.text_encoder)
        if (self.image_encoder, self.image_size) != (TableOptions.image_encoder, TableOptions.image_size):
            check_image_encoder(self.image_encoder, self.image_size)


@dataclass(frozen=True)
class Encoding(Stored):
    """The required columns of a table, and the features made from the columns.

    Args:
        columns: of the features, not empty.
        unknown: see :class:`TableOptions`.
        sparse: make CSR features instead of dense ones.
        left_out: names of the other columns of the training table.

    Raises:
        ValueError: no column, or another value of ``unknown``.
    """

    columns: tuple[NamedColumn, ...]
    unknown: Unknown = "warn"
    sparse: bool = False
    left_out: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.columns:
            raise ValueError("columns: expected a column to make features from, got none")
        if self.unknown not in CHOICES["unknown"]:
            raise ValueError(f"unknown: expected one of {list(CHOICES['unknown'])}, got {self.unknown!r}")

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Return the names of the features, such as ``age`` for numbers and ``town=Oslo`` for categories."""
        return tuple(name for column in self.columns for name in column.feature_names)

    def features(self, table: Table) -> Features:
        """Return the features of the table's rows, float64, dense or CSR.

        Raises:
            ValueError: a missing column, missing values without a replacement, infinite numbers, or, if
                refused, what training has not seen; the message tells all faults.

        Warns:
            UserWarning: what training has not seen.
        """
        names = [column.name for column in self.columns]
        new = [name for name in table.columns if name not in {*names, *self.left_out}]
        if absent := [name for name in names if name not in table.columns]:
            close = [each for name in absent for each in difflib.get_close_matches(name, new)]
            hint = f"; similar names are {close[:SHOWN]}" if close else ""
            raise ValueError(
                f"expected a column for each feature of the model, got a table without columns {absent}{hint}"
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
                f"{table.name}: {told}; none of that is a feature, and a text among numbers is missing",
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
    """Return the encoding of a training table, of all columns but those in ``left_out`` and ``ignore``.

    Columns of texts are, in this order: dates, if all texts are ISO dates; free texts, if few are repeated
    and most have two words; categories, if texts are repeated or few. Other texts name the rows, and their
    columns are left out.

    Args:
        labels: {0, 1, NaN}; a column that tells a label of every row is named in a warning.
        label_names: one for each label.
        left_out: names of columns that are no features.

    Raises:
        ValueError: names or patterns of no column; columns of faults, with all of them in the message.

    Warns:
        UserWarning: columns that look like names of rows or leak a label, and other choices.
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
            f"{table.name}: {told}; ignore, categorical and text change that", stacklevel=level_of_caller()
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
    """Return the fitted column; None, with a note, for a column without information."""
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
        # The words of names of rows may occur once.
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
    """Return whether whole numbers, all different, count the rows or have the name of names of rows."""
    if len(known) < FEW_CATEGORIES or (known != np.round(known)).any() or len(np.unique(known)) < len(known):
        return False
    counts_rows = bool((np.diff(known) == 1).all())
    return counts_rows or _ID_NAME.fullmatch(name) is not None


def _leaked(column: NamedColumn, values: np.ndarray, labels: Float[np.ndarray, "rows labels"]) -> int | None:
    """Return a label that the column tells of every row, by a threshold or by categories; None for none.

    Some rows are looked at first.
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
    """Return a mask of the labels whose values (rows, labels) the scores of the rows tell apart."""
    if num_kinds is not None:
        ones = np.ones(len(scores))
        rows = csc_array((ones, (scores, np.arange(len(scores)))), shape=(num_kinds, len(scores)))
        both = ((rows @ on.astype(float)) > 0) & ((rows @ off.astype(float)) > 0)
        return np.asarray(~both.any(0))
    known, column = ~np.isnan(scores)[:, None], scores[:, None]
    lowest = [np.where(known & mask, column, np.inf).min(0) for mask in (on, off)]
    highest = [np.where(known & mask, column, -np.inf).max(0) for mask in (on, off)]
    return (lowest[0] > highest[1]) | (highest[0] < lowest[1])
