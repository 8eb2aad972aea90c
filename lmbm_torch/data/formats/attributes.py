"""Tables of attributes, as ARFF has them, made a data set: nominal values as numbers, labels apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from scipy.sparse import csr_array

from lmbm_torch.data.dataset import MultilabelData, without_split
from lmbm_torch.data.features import Features
from lmbm_torch.data.tables.table import TRUTH
from lmbm_torch.shapes import Float


def places(names: Sequence[str], attributes: Sequence[str]) -> list[int]:
    """The columns of the attributes of these names.

    Raises:
        ValueError: names of no attribute, or a name more than once.
    """
    column = {name: place for place, name in enumerate(attributes)}
    if unknown := [name for name in names if name not in column]:
        raise ValueError(f"labels: expected names of attributes, found none named {unknown}")
    if len(set(names)) < len(names):
        raise ValueError(f"labels: expected each name once, got {list(names)}")
    return [column[name] for name in names]


def labels_apart(
    name: str,
    codes: Features,
    attributes: Sequence[str],
    categories: Mapping[str, Sequence[str]],
    columns: Sequence[int],
) -> MultilabelData:
    """The columns given are labels, the others features; all of it is training part.

    Args:
        codes: ``(instances, attributes)``, float64; a nominal value is its position among the declared ones.
        attributes: the names of all columns.
        categories: the declared values of the nominal ones.

    Raises:
        ValueError: no column is left for labels or for features; a nominal attribute does not stand for
            numbers; a label is not 0, 1 or NaN; a feature is not finite.
    """
    chosen = set(columns)
    others = [column for column in range(len(attributes)) if column not in chosen]
    if not columns or not others:
        raise ValueError(f"labels: expected to leave labels and features, got columns {list(columns)}")
    tables = {
        column: _numbers(attribute, categories[attribute])
        for column, attribute in enumerate(attributes)
        if attribute in categories
    }
    # Most nominal attributes are 0 and 1, which are their own positions.
    tables = {column: table for column, table in tables.items() if (table != np.arange(len(table))).any()}
    values: Features = (
        _decode_sparse(codes, tables) if isinstance(codes, csr_array) else _decode(codes, tables)
    )
    labels: Features = values[:, columns]
    return without_split(
        name,
        values[:, others],
        labels.toarray() if isinstance(codes, csr_array) else labels,
        [attributes[column] for column in columns],
        [attributes[column] for column in others],
    )


def _numbers(attribute: str, values: Sequence[str]) -> Float[np.ndarray, " values"]:
    """The number each declared value stands for: itself, or 0 and 1 for false/no and true/yes.

    To take the positions of others would invent an order of the categories.
    """
    try:
        return np.array([TRUTH[text] if text in TRUTH else float(text) for text in map(str.lower, values)])
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"attribute {attribute!r}: expected numbers, true/false or yes/no, got the values {list(values)}"
        ) from error


def _decode(codes: np.ndarray, tables: Mapping[int, np.ndarray]) -> np.ndarray:
    values = codes.copy()
    for column, table in tables.items():
        known = ~np.isnan(codes[:, column])
        values[known, column] = table[codes[known, column].astype(int)]
    return values


def _decode_sparse(codes: csr_array, tables: Mapping[int, np.ndarray]) -> csr_array:
    """An entry left out means the first declared value, which must be 0 for the column to stay sparse."""
    if dense := [column for column, table in tables.items() if table[0] != 0]:
        raise ValueError(
            f"expected 0 as the first value of a sparse nominal attribute, not in columns {dense}"
        )
    values = codes.copy()
    for column, table in tables.items():
        here = (codes.indices == column) & ~np.isnan(codes.data)
        values.data[here] = table[codes.data[here].astype(int)]
    values.sort_indices()
    return values
