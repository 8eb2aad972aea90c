"""Units of features for ``C="scale"``: the ranges of columns in the penalty ½‖w‖². This module is internal.

A column is centred at its mean and divided by two standard deviations. A column with zeros in most instances,
such as counts of a word, keeps the zeros and is divided by its range; a range without 0 is moved to begin or
end at 0. All columns are then divided by the root of the mean of ‖x‖². Sparse features thus stay sparse, and
columns of one range keep their proportions. Two standard deviations are the range of a column that half of
the instances have, so that columns of both kinds are comparable (Gelman 2008).

Equal columns of sparse features count as one column, such as words of a single document, or unused words.
Equal columns have equal weights at the minimum of ½‖w‖² and losses of ⟨w, x⟩, and one column that is √m
times as large replaces m columns at the same ‖w‖². In texts a third of the columns equal another column, as
most words are rare; most hashed columns are zero.
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

# Columns have unlike units if mean squares, with the constant's, differ by more than UNLIKE, or if a variance
# is below the share VARYING of the mean square: steps along single columns or rows then make little progress.
UNLIKE, VARYING = 1000.0, 0.1
# C · mean ‖x‖² of steep losses, which need many steps of a dual solver.
STEEP = 10.0


def column_units(X: Features, sample_weight: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Return shift and scale of every column, float64, (features,); the scale of a constant column is 1.

    Args:
        X: (instances, features), dense or CSR.
        sample_weight: (instances,); instances of weight 0 do not count.

    Raises:
        ValueError: a range that is not finite.
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
    # A column varies by at most its range, except for rounding and overflow.
    unit = np.where(keeps_zeros, span, np.fmin(2 * np.sqrt(scaler.var_), span))
    # The weights of X are divided by the units.
    precision = np.finfo(rows.dtype)
    unit[unit < precision.tiny / precision.eps] = 1
    return shift, unit * root_mean_square(scaled(rows, shift, unit), weights)


def have_like_units(X: Features) -> bool:
    """Return whether non-zero features (instances, features) vary and have similar mean squares."""
    rows: Any = X
    means = np.asarray(rows.mean(0, dtype=np.float64)).ravel()
    squares = np.asarray((rows.multiply(rows) if sparse.issparse(rows) else np.square(rows)).mean(0)).ravel()
    of_all = np.append(squares[squares > 0], 1.0)
    return bool(of_all.max() <= UNLIKE * of_all.min() and (squares - means**2 >= VARYING * squares).all())


def are_steep(X: Features, C: float) -> bool:
    """Return whether C · mean ‖x‖² is at least ``STEEP``, for features (instances, features).

    Losses then outweigh the penalty ½‖w‖², and a dual solver needs many steps.
    """
    return C * root_mean_square(X) ** 2 >= STEEP


def scaled(X: Features, shift: np.ndarray, scale: np.ndarray) -> Features:
    """Return (X − shift) / scale, in the precision of X; CSR stays CSR."""
    rows: Any = X
    if not sparse.issparse(rows):
        return (rows - shift.astype(rows.dtype)) / scale.astype(rows.dtype)
    if shift.any():
        every = np.ones((rows.shape[0], 1), rows.dtype)
        rows = sparse.csr_array(rows - sparse.kron(every, shift.astype(rows.dtype), "csr"))
    values = rows.data / scale.astype(rows.dtype)[rows.indices]
    return sparse.csr_array((values, rows.indices, rows.indptr), shape=rows.shape)


def root_mean_square(X: Any, sample_weight: np.ndarray | None = None) -> float:
    """Return √ of the mean of ‖x‖² of X (instances, features), dense or CSR; 1 for zero features."""
    squares = X.multiply(X) if sparse.issparse(X) else np.square(X, dtype=np.float64)
    weights = sample_weight if sample_weight is not None and sample_weight.any() else None
    return float(np.sqrt(np.average(np.asarray(squares.sum(1)).ravel(), weights=weights))) or 1.0


def _extremes(found: Any) -> np.ndarray:
    """Return one row, dense, in float64."""
    dense = found.toarray() if sparse.issparse(found) else found
    return np.asarray(dense, np.float64).ravel()


def merged(X: Features) -> tuple[Features, sparse.csr_array]:
    """Merge equal columns, and return the matrix that restores the weights.

    Args:
        X: (instances, features), dense or CSR in canonical form; dense features are not changed.

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
    # The zero column first, wherever zero columns are.
    known = {(b"", b""): 0} if len(used) < len(places) else {}
    for number in used.tolist():
        first, end = start[number], start[number + 1]
        column = rows[row_bytes * first : row_bytes * end], values[value_bytes * first : value_bytes * end]
        places[number] = known.setdefault(column, len(known))
    shares = 1 / np.sqrt(np.bincount(places))
    back: Any = sparse.csr_array((shares[places], (places, np.arange(len(places)))))
    return canonical(X @ back.T.astype(columns.dtype)), back
