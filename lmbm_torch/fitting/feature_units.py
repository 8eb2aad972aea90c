"""Scaling of features for ``C="scale"``. This module is internal.

A column is centred at the mean and divided by two standard deviations. If most values of a column are zero,
as for counts of a word, zeros stay zeros, and the column is divided by the range; a range without 0 is first
shifted to begin or end at 0. Finally all columns are divided by the root of the mean of ‖x‖². Thus sparse
features stay sparse, and columns with equal ranges keep the proportions. For a column that is 0 and 1 in
half of the instances each, two standard deviations are the range: this makes both kinds of columns comparable
(Gelman 2008).

Equal columns of sparse features are merged to one column, such as words of a single document, or unused
words. At the minimum of ½‖w‖² plus losses of ⟨w, x⟩, equal columns have equal weights; one column that is √m
times as large can replace m equal columns at the same ‖w‖². In texts a third of the columns equal another
column, because most words are rare; most hashed columns are zero.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lmbm_torch.checks import check_finite
from lmbm_torch.extras import naming_extras
from lmbm_torch.solvers.networks.problems import Features, canonical

with naming_extras():
    from scipy import sparse
    from sklearn.preprocessing import StandardScaler

__all__ = []

# Columns have unlike units if the ratio of two mean squares (1 for the constant column) is above UNLIKE, or
# if a variance is below VARYING times the mean square. Steps along columns or rows are then slow.
UNLIKE, VARYING = 1000.0, 0.1
# Losses count as steep from this value of C · mean ‖x‖²; a dual solver then needs many steps.
STEEP = 10.0


def column_units(X: Features, sample_weight: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Return the shift and scale of every column, float64, (features,).

    Args:
        X: (instances, features), dense or CSR.
        sample_weight: (instances,); instances of weight 0 do not count.

    Raises:
        ValueError: the range of a column is not finite.
    """
    rows: Any = X
    weights = np.ones(rows.shape[0])
    if sample_weight is not None and sample_weight.any():
        rows, weights = rows[sample_weight > 0], sample_weight[sample_weight > 0]
    least, most = (_extremes(extreme) for extreme in (rows.min(0), rows.max(0)))
    scaler: Any = StandardScaler(with_mean=not sparse.issparse(rows))
    with np.errstate(over="ignore", invalid="ignore"):
        span = most - least
        check_finite("X: ranges of columns", span)
        scaler.fit(rows, sample_weight=weights)
    keeps_zeros = weights @ (rows != 0) < 0.5 * weights.sum()
    shift = np.where(keeps_zeros, np.clip(0, least, most), np.clip(scaler.mean_, least, most))
    # Two standard deviations are at most the range; the range replaces results of rounding or overflow.
    unit = np.where(keeps_zeros, span, np.fmin(2 * np.sqrt(scaler.var_), span))
    # Units too small to divide by, such as 0 for constant columns, become 1.
    precision = np.finfo(rows.dtype)
    unit[unit < precision.tiny / precision.eps] = 1
    return shift, unit * root_mean_square(scaled(rows, shift, unit), weights)


def have_like_units(X: Features) -> bool:
    """Return whether columns of X (instances, features) that are not zero vary and have similar squares."""
    rows: Any = X
    means = np.asarray(rows.mean(0, dtype=np.float64)).ravel()
    squares = np.asarray((rows.multiply(rows) if sparse.issparse(rows) else np.square(rows)).mean(0)).ravel()
    of_all = np.append(squares[squares > 0], 1.0)
    return bool(of_all.max() <= UNLIKE * of_all.min() and (squares - means**2 >= VARYING * squares).all())


def are_steep(X: Features, C: float) -> bool:
    """Return whether C · mean ‖x‖² of features (instances, features) is at least ``STEEP``.

    Then the losses outweigh the penalty ½‖w‖², and a dual solver needs many steps.
    """
    return C * root_mean_square(X) ** 2 >= STEEP


def scaled(X: Features, shift: np.ndarray, scale: np.ndarray) -> Features:
    """Return (X − shift) / scale in the precision of X; for CSR the answer is CSR."""
    rows: Any = X
    if not sparse.issparse(rows):
        return (rows - shift.astype(rows.dtype)) / scale.astype(rows.dtype)
    if shift.any():
        every = np.ones((rows.shape[0], 1), rows.dtype)
        rows = sparse.csr_array(rows - sparse.kron(every, shift.astype(rows.dtype), "csr"))
    values = rows.data / scale.astype(rows.dtype)[rows.indices]
    return sparse.csr_array((values, rows.indices, rows.indptr), shape=rows.shape)


def root_mean_square(X: Any, sample_weight: np.ndarray | None = None) -> float:
    """Return the root of the mean of ‖x‖² over X (instances, features), dense or CSR; 1 if X is zero."""
    squares = X.multiply(X) if sparse.issparse(X) else np.square(X, dtype=np.float64)
    weights = sample_weight if sample_weight is not None and sample_weight.any() else None
    return float(np.sqrt(np.average(np.asarray(squares.sum(1)).ravel(), weights=weights))) or 1.0


def _extremes(found: Any) -> np.ndarray:
    """Convert one row, dense or sparse, to a dense array of float64."""
    dense = found.toarray() if sparse.issparse(found) else found
    return np.asarray(dense, np.float64).ravel()


def merged(X: Features) -> tuple[Features, sparse.csr_array]:
    """Merge equal columns; return also the matrix that converts weights back.

    Args:
        X: (instances, features), dense or CSR in canonical form; dense features are returned unchanged.

    Returns:
        Features (instances, distinct columns), and a matrix (distinct columns, features) that converts
        weights (outputs, distinct columns) to weights (outputs, features) of the same norm.
    """
    if not sparse.issparse(X):
        every: Any = X
        return X, sparse.csr_array(sparse.eye_array(every.shape[1]))
    columns: Any = sparse.csc_array(X)
    rows, values = columns.indices.tobytes(), columns.data.tobytes()
    row_bytes, value_bytes = columns.indices.itemsize, columns.data.itemsize
    start, used = columns.indptr.tolist(), np.flatnonzero(np.diff(columns.indptr))
    places = np.zeros(columns.shape[1], np.int64)
    # If there are zero columns, the first merged column is their column.
    known = {(b"", b""): 0} if len(used) < len(places) else {}
    for number in used.tolist():
        first, end = start[number], start[number + 1]
        column = rows[row_bytes * first : row_bytes * end], values[value_bytes * first : value_bytes * end]
        places[number] = known.setdefault(column, len(known))
    shares = 1 / np.sqrt(np.bincount(places))
    back: Any = sparse.csr_array((shares[places], (places, np.arange(len(places)))))
    return canonical(X @ back.T.astype(columns.dtype)), back
