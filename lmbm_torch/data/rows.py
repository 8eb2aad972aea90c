"""Instances of a matrix, a data frame or a list: how many there are, and some of them."""

from __future__ import annotations

from numbers import Number
from typing import Any

import numpy as np
from sklearn.utils import check_array


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
    # Tables of Arrow.
    if hasattr(X, "take") and hasattr(X, "schema") and not hasattr(X, "lazy"):
        return X.take(rows)
    return X[rows] if hasattr(X, "shape") else [X[row] for row in rows]


def checked_weights(sample_weight: Any, count: int) -> np.ndarray:
    """Return weights of instances as float64, (count,).

    Args:
        sample_weight: (count,), or one number for all.

    Raises:
        ValueError: another shape, weights that are negative or not finite, all of them 0.
    """
    if isinstance(sample_weight, Number):
        sample_weight = np.full(count, sample_weight)
    options: dict[str, Any] = {"dtype": np.float64, "order": "C", "input_name": "sample_weight"}
    weights = check_array(sample_weight, ensure_2d=False, **options)
    if weights.shape != (count,):
        raise ValueError(f"sample_weight.shape: expected ({count},), got {weights.shape}")
    if (weights < 0).any():
        raise ValueError(f"sample_weight: expected no negative values, got {weights.min()}")
    if not weights.any():
        # scikit-learn's checks of estimators look for the sentence.
        raise ValueError("Sample weights must contain at least one non-zero number.")
    return weights
