"""Targets in scikit-learn's forms, and as the {0, 1} label matrices of the library."""

from __future__ import annotations

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from lmbm_torch.checks import check_labels, check_shape
from lmbm_torch.data.tables import schema
from lmbm_torch.data.tables.sources import open_table
from lmbm_torch.energies import Energy


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
        table = open_table(labels)
        return schema.label_matrix(table, list(table.columns))
    return labels.toarray() if sparse.issparse(labels) else np.asarray(labels)


def is_label_matrix(y: np.ndarray) -> bool:
    """Whether targets are labels rather than one class per instance."""
    if y.ndim != 2:
        return False
    is_binary = np.issubdtype(y.dtype, np.number) and bool(((y == 0) | (y == 1) | (y != y)).all())
    return y.shape[1] > 1 or is_binary
