"""Targets in scikit-learn's forms, and as the {0, 1} label matrices of the library."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from lmbm_torch.checks import check_labels, check_shape
from lmbm_torch.data.features import numbered
from lmbm_torch.data.formats.table import open_table
from lmbm_torch.data.tables import schema
from lmbm_torch.energies import Energy
from lmbm_torch.memory import part_bytes
from lmbm_torch.solvers.networks.problems import canonical

# Labels, or their fields, that are held dense at once, of a matrix that is sparse.
VALUES_AT_ONCE = 2**22


def label_matrix(name: str, labels, *, allow_missing: bool) -> np.ndarray:
    """Labels as float64.

    Raises:
        TypeError: labels that are not numbers.
        ValueError: labels other than 0 and 1 (or NaN, where that is allowed).
    """
    labels = dense(labels)
    if labels.dtype == object:
        try:
            labels = labels.astype(np.float64)
        except (TypeError, ValueError) as strange:
            raise TypeError(f"{name}: expected numbers: {strange}") from None
    check_labels(name, labels, allow_missing=allow_missing)
    return labels.astype(np.float64)


def is_sparse_and_binary(y: Any) -> bool:
    """Whether y is a sparse matrix of several labels in {0, 1}."""
    return bool(sparse.issparse(y) and y.shape[1] > 1 and np.isin(y.data, (0, 1)).all())


def predicted_sparse(
    predict: Callable[[Any, np.ndarray | None], Any], X: Any, known: Any, classes: np.ndarray
) -> sparse.csr_array:
    """Predicted label matrices as CSR, some rows at a time.

    Args:
        predict: (instances, known) → labels.
        classes: (labels, 2), the values of each label.

    Raises:
        ValueError: labels of other values than 0 and 1.
    """
    if (np.asarray(classes) != (0, 1)).any():
        raise ValueError("sparse_output: expected labels that are 0 and 1, got others in fit")
    X = X.tocsr() if sparse.issparse(X) else X
    step, count = rows_at_once(len(classes)), np.shape(X)[0]
    parts = []
    # Without rows there is one call, which refuses that.
    for first in range(0, max(count, 1), step):
        rows = slice(first, first + step)
        given = None if known is None else np.asarray(known)[rows]
        parts.append(sparse.csr_array(predict(X[rows], given)))
    return sparse.csr_array(sparse.vstack(parts, format="csr"))


def rows_at_once(num_labels: int) -> int:
    """How many label vectors are held dense, of a sparse matrix."""
    return max(1, part_bytes(8 * VALUES_AT_ONCE) // (8 * num_labels))


def sparse_label_matrix(labels) -> sparse.csr_array:
    """Labels in {0, 1} of a sparse matrix, CSR of float64 without stored zeros.

    Raises:
        ValueError: labels other than 0 and 1, also as sums of entries of one place.
    """
    rows = canonical(sparse.csr_array(labels, dtype=np.float64))
    check_labels("y", rows.data)
    return rows


def label_tensor(name: str, labels, energy: Energy, *, allow_missing: bool = False) -> Tensor:
    """Labels as a tensor on the energy's device, in its dtype.

    Raises:
        TypeError, ValueError: see :func:`label_matrix`; ValueError for another shape than the energy's.
    """
    labels = label_matrix(name, labels, allow_missing=allow_missing)
    check_shape(name, labels, energy.batch_size, energy.num_labels)
    return torch.from_numpy(labels).to(energy.device, energy.dtype)


def known_tensor(known, energy: Energy) -> Tensor | None:
    """Given outputs (instances, labels) of {0, 1, NaN} for a decoder; None if there are none."""
    return None if known is None else label_tensor("known", known, energy, allow_missing=True)


def dense(labels) -> np.ndarray:
    """Sparse matrices and data frames as arrays; a frame of a single column may hold classes."""
    if hasattr(labels, "columns") and labels.shape[1] > 1:
        values = np.asarray(labels)
        if values.dtype == object and any(isinstance(value, str) for value in values[0]):
            return values
        table = open_table(labels)
        columns = list(table.columns.values())
        if all(column.dtype.kind in "iuf" for column in columns):
            # Two numbers, whichever.
            return np.column_stack(columns)
        return schema.label_matrix(table, list(table.columns))
    return labels.toarray() if sparse.issparse(labels) else np.asarray(labels)


def check_columns(labels: Any, names: Sequence[str] | None) -> None:
    """Refuse a data frame of labels whose columns are not those of ``fit``, in their order.

    Args:
        labels: in any form; what has no names is taken as it stands.
        names: of the labels; None, or :func:`~lmbm_torch.data.features.numbered`, where ``fit`` saw none.

    Raises:
        ValueError: other columns, as scikit-learn says it of features.
    """
    columns = getattr(labels, "columns", None)
    if columns is None or not names or tuple(names) == numbered("label", len(names)):
        return
    found = [str(name) for name in columns]
    if found == [*names]:
        return
    if sorted(found) == sorted(names):
        raise ValueError(f"labels: expected columns in the order of fit, {[*names]}, got {found}")
    missing, unknown = ([name for name in a if name not in b] for a, b in ((names, found), (found, names)))
    raise ValueError(f"labels: expected the columns of fit, got none of {missing[:5]}, but {unknown[:5]}")


def is_label_matrix(y: np.ndarray) -> bool:
    """Whether targets are labels rather than one class per instance."""
    if y.ndim != 2:
        return False
    is_binary = np.issubdtype(y.dtype, np.number) and bool(((y == 0) | (y == 1) | (y != y)).all())
    return y.shape[1] > 1 or is_binary
