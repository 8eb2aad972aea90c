"""Instances, weights and labels in the forms that users pass."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Number
from typing import Any

import numpy as np

from lmbm_torch.checks import is_missing


def num_instances(X: Any) -> int:
    """Return the number of instances.

    Raises:
        TypeError: X is a scalar, or has neither a shape nor a length.
    """
    shape = getattr(X, "shape", None)
    if shape is None and not hasattr(X, "__len__"):
        raise TypeError(f"X: expected an array, a data frame or a list of instances, got {type(X).__name__}")
    if shape is not None and len(shape) == 0:
        raise TypeError("X: expected an array, a data frame or a list of instances, got a scalar")
    return int(len(X) if shape is None else shape[0])


def some_instances(X: Any, rows: Any) -> Any:
    """Return some instances of X as an object of the same type as X.

    Args:
        rows: an array of row numbers, or a mask (instances,).
    """
    rows = np.flatnonzero(rows) if rows.dtype == bool else rows
    if hasattr(X, "iloc"):
        return X.iloc[rows]
    # Only Arrow tables have "take" and "schema" but not "lazy".
    if hasattr(X, "take") and hasattr(X, "schema") and not hasattr(X, "lazy"):
        return X.take(rows)
    return X[rows] if hasattr(X, "shape") else [X[row] for row in rows]


def checked_weights(sample_weight: Any, count: int) -> np.ndarray:
    """Return checked weights of instances as float64, (count,).

    Args:
        sample_weight: (count,), or a single number for all instances.

    Raises:
        ValueError: the shape differs, a weight is negative or infinite, or all weights are 0.
    """
    # Imported here, because modules without scikit-learn import this module.
    from sklearn.utils import check_array

    if isinstance(sample_weight, Number):
        sample_weight = np.full(count, sample_weight)
    options: dict[str, Any] = {"dtype": np.float64, "order": "C", "input_name": "sample_weight"}
    weights = check_array(sample_weight, ensure_2d=False, **options)
    if weights.shape != (count,):
        raise ValueError(f"sample_weight: expected the shape ({count},), got {weights.shape}")
    if (weights < 0).any():
        raise ValueError(f"sample_weight: expected no negative values, got {weights.min()}")
    if not weights.any():
        # scikit-learn's estimator checks expect this sentence.
        raise ValueError("Sample weights must contain at least one non-zero number.")
    return weights


def two_valued(y: np.ndarray, declared: Sequence[Any] | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Return labels as {0, 1, NaN}, (instances, labels), and their two original values, (labels, 2).

    Numeric labels are 0 and 1, or two numbers that all labels share, for example −1 and 1. Labels of text may
    have two values for each label. If a label has only one value, the two values of all labels are taken if
    there are exactly two, otherwise the single value stands for both. Other labels are returned unchanged.

    Args:
        declared: for each label further values in ascending order, or None.

    Raises:
        ValueError: a label has three or more texts as values.
    """
    if y.dtype.kind in "OUS":
        missing = is_missing(y)
        known = y[~missing].tolist()
        if known and all(isinstance(value, str) for value in known):
            return _of_texts(y, missing, declared)
        if all(isinstance(value, int | float | np.number | np.bool_) for value in known):
            y = np.where(missing, np.nan, y).astype(np.float64)
    zero_or_one = np.tile([0, 1], (y.shape[1], 1))
    if y.dtype.kind not in "iuf":
        return y, zero_or_one
    found = np.unique(y[y == y])
    if declared is not None and all(each is not None for each in declared):
        found = np.union1d(found, np.concatenate([np.asarray(each, np.float64) for each in declared]))
    is_other = len(found) == 2 and found.tolist() != [0, 1] and bool((found == np.round(found)).all())
    if not is_other:
        return y, zero_or_one
    coded = np.where(y == y, y == found[1], np.nan)
    return coded, np.tile(found.astype(np.int64), (y.shape[1], 1))


def _of_texts(
    y: np.ndarray, missing: np.ndarray, declared: Sequence[Any] | None
) -> tuple[np.ndarray, np.ndarray]:
    columns = [y[~missing[:, label], label].tolist() for label in range(y.shape[1])]
    values = own_values(columns, [None] * len(columns) if declared is None else declared)
    coded, classes = np.full(y.shape, np.nan), []
    for label, own in enumerate(values):
        if len(own) > 2:
            raise ValueError(f"y: expected two values of label {label}, got {len(own)}: {own[:5]}")
        coded[~missing[:, label], label] = [len(own) == 2 and value == own[1] for value in columns[label]]
        classes.append([own[0], own[-1]])
    return coded, np.array(classes)


def own_values(columns: Sequence[Sequence[Any]], declared: Sequence[Any]) -> list[list[Any]]:
    """Return the values of each label, ascending, from known values and declared values.

    If a label has fewer than two values and all labels together have two, these two are returned.
    """
    found = [
        sorted({*column}) if own is None else [*own, *sorted({*column} - {*own})]
        for column, own in zip(columns, declared, strict=True)
    ]
    # Values of different labels may have types without a common order, so they are not sorted together.
    every = [*{value for own in found for value in own}]
    every = sorted(every) if len(every) == 2 and type(every[0]) is type(every[1]) else []
    return [every if len(own) < 2 and every else own for own in found]
