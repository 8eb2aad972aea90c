"""The recipe of large-margin training: the default settings of all estimators and commands.

The recipe sets the weight C of the losses, the scaling of features, the penalty on couplings, the number of
completions of missing labels, and the folds for calibration, for estimators, training modules and
comparisons. ``scripts/bench/recipes.py`` compares the recipe with alternatives.

With ``C="scale"`` features are scaled: a column is centred at the mean and divided by two standard
deviations. If most values of a column are zero, as for counts of a word, zeros stay zeros, and the column is
divided by the range; a range without 0 is first shifted to begin or end at 0. Finally all columns are divided
by the root of the mean of ‖x‖². Thus sparse features stay sparse, and columns with equal ranges still have
equal ranges. If a column is 0 in half of the instances and 1 in the other half, two standard deviations equal
the range, so both kinds of columns are comparable (Gelman 2008).

Equal columns of sparse features, such as words that occur only in one document, are merged to one column. At
the minimum of ½‖w‖² plus losses of ⟨w, x⟩, equal columns have equal weights; one column that is √m times as
large can replace m equal columns at the same ‖w‖². In texts a third of the columns equal another column,
because most words are rare; most columns of hashed features are zero.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from lmbm_torch.checks import check_finite, check_positive
from lmbm_torch.extras import naming_extras
from lmbm_torch.solvers.networks.problems import Features, canonical

with naming_extras():
    from scipy import sparse
    from sklearn.model_selection import KFold
    from sklearn.preprocessing import StandardScaler

# Dual solvers are slow if the mean squares of two columns (1 for the constant column) have a ratio above
# UNLIKE, or if a column's variance is below VARYING times the column's mean square.
UNLIKE, VARYING = 1000.0, 0.1
# If C · mean ‖x‖² is at least STEEP, the losses outweigh the penalty, and a dual solver needs many steps.
STEEP = 10.0


SCALE = "scale"
C = SCALE
"""Default weight C of the losses: 1, for features scaled as in :func:`units`."""
COUPLING_PENALTY = SCALE
"""Default penalty η0 on the couplings of a large-margin Boltzmann machine, see :func:`coupling_penalty`."""
ORDERING = "f_score"
"""Default order of the labels of a belief network in which all earlier labels are parents of a label."""
ORDERING_OF_CHOSEN_PARENTS = "frequency"
"""Default order of the labels of a belief network that chooses a few parents for each label."""
ORDERING_OF_STREAMS = "index"
"""Default order of the labels of a belief network that learns from a stream of instances."""
MANY_LABELS = 128
"""Largest number of labels for which all earlier labels are parents; above, parents are chosen."""
SEARCHED_UNITS = {
    "dense": ("standardised, unit rows", "[0, 1]", "unit rows", "standardised"),
    "sparse": ("unit rows", "largest 1"),
}
"""Scalings of features that an automatic choice tries; the scaling that is usually best comes first."""
SEARCHED: dict[str, tuple[Any, ...]] = {
    "logistic regressions": (1.0, 0.1, 10.0),
    "network": (1.0, 10.0, 0.1, 3.0, 0.3),
    "kernel network": (3.0, 10.0, 1.0, 30.0),
    "ten networks": (("linear", 1.0), ("rbf", 10.0)),
    "Boltzmann machine": (10.0, 1.0, 100.0),
    "label powerset": (("rbf", 10.0), ("linear", 1.0), ("rbf", 1.0), ("linear", 10.0), ("linear", 0.1)),
    "regression of label sets": (3.0, 1.0, 0.3, 10.0),
    "forest": (1, 3),
    "label boosting": (0.1, 0.05),
    "forest of label sets": (1, 3),
    "chain of extra trees": ((1, "sqrt"), (1, 0.3), (3, "sqrt"), (3, 0.3)),
    "chain of logistic regressions": (1.0, 10.0, 0.1),
    "chain of boosting": (0.1, 0.05),
}
"""Settings that an automatic choice tries for each family of models; the usually best setting comes first.

A setting is the weight C of the losses, or a kernel and C; for regressions the width γ; for trees the
smallest size of a leaf, or this size and the features to try at each split; for boosting the learning rate.
"""
FOLDS = 5
"""Number of folds for calibration."""
ROUNDS = 4
"""Largest number of trainings with missing labels; a training completes the labels for the next training."""
SEARCHED_C = (1.0, 10.0, 0.1, 3.0, 0.3, 30.0)
"""Multiples of ``"scale"`` that searches over C try, the most promising first (scripts/bench/recipes.py)."""
_MULTIPLE = re.compile(r"(?:([0-9.]+(?:e[+-]?[0-9]+)?)\s*\*\s*)?scale", re.IGNORECASE)


def column_units(X: Features, sample_weight: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Return the shift and scale of every column, float64, (features,).

    Args:
        X: (instances, features), dense or CSR.
        sample_weight: (instances,); instances of weight 0 are ignored.

    Raises:
        ValueError: the range of a column is not finite.
    """
    rows: Any = X
    weights = np.ones(rows.shape[0])
    if sample_weight is not None and sample_weight.any():
        rows, weights = rows[sample_weight > 0], sample_weight[sample_weight > 0]
    ends = ((end.toarray() if sparse.issparse(end) else end) for end in (rows.min(0), rows.max(0)))
    least, most = (np.asarray(end, np.float64).ravel() for end in ends)
    scaler: Any = StandardScaler(with_mean=not sparse.issparse(rows))
    with np.errstate(over="ignore", invalid="ignore"):
        span = most - least
        check_finite("X: ranges of columns", span)
        scaler.fit(rows, sample_weight=weights)
    keeps_zeros = weights @ (rows != 0) < 0.5 * weights.sum()
    shift = np.where(keeps_zeros, np.clip(0, least, most), np.clip(scaler.mean_, least, most))
    # Two standard deviations exceed the range only by round-off or overflow; then divide by the range.
    unit = np.where(keeps_zeros, span, np.fmin(2 * np.sqrt(scaler.var_), span))
    # Replace units too small to divide by, such as 0 for constant columns, by 1.
    precision = np.finfo(rows.dtype)
    unit[unit < precision.tiny / precision.eps] = 1
    return shift, unit * root_mean_square(scaled(rows, shift, unit), weights)


def have_like_units(X: Features) -> bool:
    """Return whether all non-zero columns of X (instances, features) vary and have similar mean squares."""
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
    """Return (X − shift) / scale in the precision of X; if X is CSR, the result is CSR."""
    rows: Any = X
    if not sparse.issparse(rows):
        return (rows - shift.astype(rows.dtype)) / scale.astype(rows.dtype)
    if shift.any():
        every = np.ones((rows.shape[0], 1), rows.dtype)
        rows = sparse.csr_array(rows - sparse.kron(every, shift.astype(rows.dtype), "csr"))
    values = rows.data / scale.astype(rows.dtype)[rows.indices]
    return sparse.csr_array((values, rows.indices, rows.indptr), shape=rows.shape)


def root_mean_square(X: Any, sample_weight: np.ndarray | None = None) -> float:
    """Return the root of the mean of ‖x‖² over the rows x of X, dense or CSR; 1 if X is zero."""
    squares = X.multiply(X) if sparse.issparse(X) else np.square(X, dtype=np.float64)
    weights = sample_weight if sample_weight is not None and sample_weight.any() else None
    return float(np.sqrt(np.average(np.asarray(squares.sum(1)).ravel(), weights=weights))) or 1.0


def merged(X: Features) -> tuple[Features, sparse.csr_array]:
    """Merge equal columns; return the features and the matrix that converts weights back.

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
    # If X has columns of zeros only, merge them to column 0.
    known = {(b"", b""): 0} if len(used) < len(places) else {}
    for number in used.tolist():
        first, end = start[number], start[number + 1]
        column = rows[row_bytes * first : row_bytes * end], values[value_bytes * first : value_bytes * end]
        places[number] = known.setdefault(column, len(known))
    shares = 1 / np.sqrt(np.bincount(places))
    back: Any = sparse.csr_array((shares[places], (places, np.arange(len(places)))))
    return canonical(X @ back.T.astype(columns.dtype)), back


class Units(NamedTuple):
    """The weight of the losses as a number, with the scaling of the features.

    Args:
        C: weight of the losses, above 0.
        shift, scale: float64, (features,): training uses (X − shift) / scale; 0 and 1 without scaling.
    """

    C: float
    shift: np.ndarray | float
    scale: np.ndarray | float

    def scaled(self, X: Features) -> Features:
        """Return (X − shift) / scale, or X unchanged if features are not scaled."""
        return X if np.ndim(self.scale) == 0 else scaled(X, np.asarray(self.shift), np.asarray(self.scale))


def multiple(setting: float | str) -> float | None:
    """Return the factor of ``"scale"``, such as 0.3 for ``"0.3*scale"``; None for other settings."""
    found = _MULTIPLE.fullmatch(setting.strip()) if isinstance(setting, str) else None
    if found is None:
        return None
    try:
        factor = float(found[1] or 1)
    except ValueError:
        return None
    return factor if 0 < factor < np.inf else None


def times_scale(factor: float) -> str:
    """Return a multiple of ``"scale"`` as text, such as ``"0.3*scale"``, with all digits of ``factor``."""
    return f"{factor!r}*{SCALE}"


def check_relative(name: str, setting: float | str) -> None:
    """Raise ValueError unless a setting is a number above 0, ``"scale"`` or a multiple of ``"scale"``."""
    if not isinstance(setting, str):
        check_positive(name, setting)
    elif multiple(setting) is None:
        raise ValueError(
            f"{name}: expected a number above 0, 'scale' or a multiple such as '0.3*scale', got {setting!r}"
        )


def units(C: float | str, X: Features, sample_weight: np.ndarray | None = None) -> Units:
    """Convert the setting of C to a number, and compute the scaling of the features.

    If C is a number, features are not scaled. ``"scale"`` stands for C = 1, and ``"0.3*scale"`` for C = 0.3,
    with features scaled to a mean ‖x‖² of 1; see :mod:`~lmbm_torch.fitting.recipe`. After training, weights
    are converted to weights for X.

    Args:
        X: (instances, features), dense or CSR.
        sample_weight: (instances,).
    """
    factor = multiple(C)
    return Units(float(C), 0.0, 1.0) if factor is None else Units(factor, *column_units(X, sample_weight))


def coupling_penalty(setting: float | str, C: float, instances: float) -> float:
    """Convert the setting of the coupling penalty η0 to a number; ``"scale"`` means half of C · instances.

    Args:
        setting: a number, ``"scale"`` or a multiple of ``"scale"``.
        C: the weight of the losses.
        instances: the number of instances, or the sum of the instances' weights.
    """
    factor = multiple(setting)
    return float(setting) if factor is None else factor * C * float(instances) / 2


def calibration_folds(instances: int, seed: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield training rows and held-out rows of each calibration fold.

    Args:
        instances: number of instances, at least 2.
    """
    folds = KFold(min(FOLDS, instances), shuffle=True, random_state=seed)
    yield from folds.split(np.empty((instances, 1)))
