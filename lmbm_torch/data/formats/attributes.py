"""From a table of attributes, as in ARFF, to a data set: nominal values become numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from scipy.sparse import csr_array

from lmbm_torch.data.dataset import MultilabelData, without_split
from lmbm_torch.data.features import Features
from lmbm_torch.data.tables.table import TRUTH
from lmbm_torch.shapes import Float


def places(names: Sequence[str], attributes: Sequence[str]) -> list[int]:
    """The columns of the attributes with these names.

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
    """A data set, all of it training part: the columns given are its labels, the others its features.

    Args:
        codes: ``(instances, attributes)``, float64; a nominal value is its position among the declared ones.
        attributes: the names of all columns.
        categories: the declared values of the nominal ones.

    Raises:
        ValueError: no column is left for labels or for features; a nominal attribute does not stand for
            numbers; a label is not 0, 1 or NaN; a feature is not finite.
    """
    others = sorted({*range(len(attributes))}.difference(columns))
    if not columns or not others:
        raise ValueError(f"labels: expected to leave labels and features, got columns {list(columns)}")
    tables = {
        column: _numbers(attribute, categories[attribute])
        for column, attribute in enumerate(attributes)
        if attribute in categories
    }
    # Values that are their own positions, such as 0 and 1, need no table.
    tables = {column: table for column, table in tables.items() if (table != np.arange(len(table))).any()}
    values = _decoded(codes, tables)
    labels: Features = values[:, columns]
    labels = labels.toarray() if isinstance(codes, csr_array) else labels
    names = [attributes[each] for each in columns], [attributes[each] for each in others]
    return without_split(name, values[:, others], labels, *names)


def _numbers(attribute: str, values: Sequence[str]) -> Float[np.ndarray, " values"]:
    """The number each declared value stands for: itself, or 0 and 1 for false/no and true/yes.

    Other values have no number: their positions would invent an order of the categories.
    """
    try:
        return np.array([TRUTH[text] if text in TRUTH else float(text) for text in map(str.lower, values)])
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"attribute {attribute!r}: expected numbers, true/false or yes/no, got the values {list(values)}"
        ) from error


def _decoded(codes: Features, tables: Mapping[int, np.ndarray]) -> Features:
    """The number that each position stands for, by the table of its column.

    An entry that a sparse matrix leaves out means the first declared value, which must be 0 for the column to
    stay sparse.
    """
    values, sparse = codes.copy(), isinstance(codes, csr_array)
    if sparse and (dense := [column for column, table in tables.items() if table[0] != 0]):
        raise ValueError(
            f"expected 0 as the first value of a sparse nominal attribute, not in columns {dense}"
        )
    for column, table in tables.items():
        stored = values.data if sparse else values[:, column]
        here = ~np.isnan(stored) & (values.indices == column if sparse else True)
        stored[here] = table[stored[here].astype(int)]
    if sparse:
        values.sort_indices()
    return values
