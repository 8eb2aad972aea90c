"""Labels of two values, whichever, in the coding of the library."""

from __future__ import annotations

import numpy as np


def two_valued(y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Labels of any two values as {0, 1, NaN}, (instances, labels), and the values, (labels, 2), 0's first.

    Numbers are 0 and 1, or two others that all labels share, such as −1 and 1; each label has texts of its
    own. What is neither is left as it is.

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
