"""Units of features that ``C="scale"`` counts in: what the penalty ½‖w‖² is told about ranges of columns.

A column is counted from its mean, in two of its standard deviations. One that is 0 in most instances, as
counts of words are, keeps its zeros, and is measured in its range; if that does not hold 0 it is moved to
begin or end there. All are then divided by the root of the mean of ‖x‖² that this leaves. Sparse features
thus stay sparse, and those of one range keep their proportions; two standard deviations are the range of
what half of the instances have, which makes columns of both kinds comparable (Gelman 2008).

Equal columns of sparse features count as one: words that one document alone has, and those that none has.
Columns that are equal have equal weights where ½‖w‖² and losses of ⟨w, x⟩ are least, and one column that is
√m times as large stands for m of them at the same ‖w‖². Of texts, most columns are so rare that a third are
another's equals, and of hashed ones most are of nothing but zeros.
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

__all__ = ["are_steep", "column_units", "have_like_units", "merged", "root_mean_square", "scaled"]

# Columns in unlike units differ in mean square by more than this, the constant among them, or vary by less
# than this share of theirs: steps along single columns or rows then make little.
UNLIKE, VARYING = 1000.0, 0.1
# Losses weighed so much, for instances of norm 1, are steep: so is what a dual solver has to climb.
STEEP = 10.0


def column_units(X: Features, sample_weight: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Shift and scale of every column, float64, (features,); a scale of 1 for features of one value.

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
    # Nothing varies by more than its range but for rounding and overflow.
    unit = np.where(keeps_zeros, span, np.fmin(2 * np.sqrt(scaler.var_), span))
    # Weights of X divide by them.
    precision = np.finfo(rows.dtype)
    unit[unit < precision.tiny / precision.eps] = 1
    return shift, unit * root_mean_square(scaled(rows, shift, unit), weights)


def have_like_units(X: Features) -> bool:
    """Whether features (instances, features) but zeros have about the same mean squares, and vary."""
    rows: Any = X
    means = np.asarray(rows.mean(0, dtype=np.float64)).ravel()
    squares = np.asarray((rows.multiply(rows) if sparse.issparse(rows) else np.square(rows)).mean(0)).ravel()
    of_all = np.append(squares[squares > 0], 1.0)
    return bool(of_all.max() <= UNLIKE * of_all.min() and (squares - means**2 >= VARYING * squares).all())


def are_steep(X: Features, C: float) -> bool:
    """Whether losses of features (instances, features) that C weighs are steep beside ½‖w‖²."""
    return C * root_mean_square(X) ** 2 >= STEEP


def scaled(X: Features, shift: np.ndarray, scale: np.ndarray) -> Features:
    """(X − shift) / scale, in the precision of X; CSR stays CSR."""
    rows: Any = X
    if not sparse.issparse(rows):
        return (rows - shift.astype(rows.dtype)) / scale.astype(rows.dtype)
    if shift.any():
        every = np.ones((rows.shape[0], 1), rows.dtype)
        rows = sparse.csr_array(rows - sparse.kron(every, shift.astype(rows.dtype), "csr"))
    values = rows.data / scale.astype(rows.dtype)[rows.indices]
    return sparse.csr_array((values, rows.indices, rows.indptr), shape=rows.shape)


def root_mean_square(X: Any, sample_weight: np.ndarray | None = None) -> float:
    """√ of the mean of ‖x‖² over instances (instances, features), dense or CSR; 1 for features of zero."""
    squares = X.multiply(X) if sparse.issparse(X) else np.square(X, dtype=np.float64)
    weights = sample_weight if sample_weight is not None and sample_weight.any() else None
    return float(np.sqrt(np.average(np.asarray(squares.sum(1)).ravel(), weights=weights))) or 1.0


def _extremes(found: Any) -> np.ndarray:
    """One row, dense, in float64."""
    dense = found.toarray() if sparse.issparse(found) else found
    return np.asarray(dense, np.float64).ravel()


def merged(X: Features) -> tuple[Features, sparse.csr_array]:
    """Features with one column for all that are equal, and the way back.

    Args:
        X: (instances, features), dense or CSR in canonical form; dense ones are left as they are.

    Returns:
        Features (instances, distinct columns), and a matrix (distinct columns, features) that makes weights
        (outputs, features) of theirs (outputs, distinct columns), of the same norm.
    """
    if not sparse.issparse(X):
        every: Any = X
        return X, sparse.csr_array(sparse.eye_array(every.shape[1]))
    columns: Any = sparse.csc_array(X)
    rows, values = columns.indices.tobytes(), columns.data.tobytes()
    row_bytes, value_bytes = columns.indices.itemsize, columns.data.itemsize
    start, used = columns.indptr.tolist(), np.flatnonzero(np.diff(columns.indptr))
    places = np.zeros(columns.shape[1], np.int64)
    # Those of zeros first, wherever they are.
    known = {(b"", b""): 0} if len(used) < len(places) else {}
    for number in used.tolist():
        first, end = start[number], start[number + 1]
        column = rows[row_bytes * first : row_bytes * end], values[value_bytes * first : value_bytes * end]
        places[number] = known.setdefault(column, len(known))
    shares = 1 / np.sqrt(np.bincount(places))
    back: Any = sparse.csr_array((shares[places], (places, np.arange(len(places)))))
    return canonical(X @ back.T.astype(columns.dtype)), back
