"""Instances, weights and labels in the forms that users pass."""

from __future__ import annotations

from numbers import Number
from typing import Any

import numpy as np


def num_instances(X: Any) -> int:
    """Return the number of instances.

    Raises:
        TypeError: a scalar, or what has neither a shape nor a length.
    """
    shape = getattr(X, "shape", None)
    if shape is None and not hasattr(X, "__len__"):
        raise TypeError(f"X: expected instances, got {type(X).__name__}")
    if shape is not None and len(shape) == 0:
        raise TypeError("X: expected instances, got a scalar")
    return int(len(X) if shape is None else shape[0])


def some_instances(X: Any, rows: Any) -> Any:
    """Return some instances of X, of the kind that X is.

    Args:
        rows: an array of their numbers, or a mask (instances,).
    """
    rows = np.flatnonzero(rows) if rows.dtype == bool else rows
    if hasattr(X, "iloc"):
        return X.iloc[rows]
    # Arrow tables.
    if hasattr(X, "take") and hasattr(X, "schema") and not hasattr(X, "lazy"):
        return X.take(rows)
    return X[rows] if hasattr(X, "shape") else [X[row] for row in rows]


def checked_weights(sample_weight: Any, count: int) -> np.ndarray:
    """Return weights of instances as float64, (count,).

    Args:
        sample_weight: (count,), or one number for all.

    Raises:
        ValueError: another shape, negative or infinite weights, all of them 0.
    """
    # At use: splits import this module and do not need scikit-learn.
    from sklearn.utils import check_array

    if isinstance(sample_weight, Number):
        sample_weight = np.full(count, sample_weight)
    options: dict[str, Any] = {"dtype": np.float64, "order": "C", "input_name": "sample_weight"}
    weights = check_array(sample_weight, ensure_2d=False, **options)
    if weights.shape != (count,):
        raise ValueError(f"sample_weight.shape: expected ({count},), got {weights.shape}")
    if (weights < 0).any():
        raise ValueError(f"sample_weight: expected no negative values, got {weights.min()}")
    if not weights.any():
        # scikit-learn's estimator checks expect this sentence.
        raise ValueError("Sample weights must contain at least one non-zero number.")
    return weights


def two_valued(y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return labels as {0, 1, NaN}, (instances, labels), and the values, (labels, 2), the value of 0 first.

    Numbers are 0 and 1, or two different numbers shared by all labels, such as −1 and 1. Each label may have
    two own texts. Different labels are returned unchanged.

    Raises:
        ValueError: a label with other than two texts.
    """
    if y.dtype.kind in "OUS":
        return _of_texts(y)
    zero_or_one = np.tile([0, 1], (y.shape[1], 1))
    if y.dtype.kind not in "iuf":
        return y, zero_or_one
    found = np.unique(y[y == y])
    is_other = len(found) == 2 and found.tolist() != [0, 1] and bool((found == np.round(found)).all())
    if not is_other:
        return y, zero_or_one
    coded = np.where(y == y, y == found[1], np.nan)
    return coded, np.tile(found.astype(np.int64), (y.shape[1], 1))


def _of_texts(y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    missing = np.array([[value is None or value != value for value in row] for row in y.tolist()])
    if not all(isinstance(value, str) for value in y[~missing].tolist()):
        return y, np.tile([0, 1], (y.shape[1], 1))
    coded, classes = np.full(y.shape, np.nan), []
    for label in range(y.shape[1]):
        known = ~missing[:, label]
        values = sorted({*y[known, label].tolist()})
        if len(values) != 2:
            raise ValueError(f"y: expected two values of label {label}, got {len(values)}: {values[:5]}")
        coded[known, label] = y[known, label] == values[1]
        classes.append(values)
    return coded, np.array(classes)
