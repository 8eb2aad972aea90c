"""Feature matrices, dense or CSR: type, checks, and default names of columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np
from scipy.sparse import csr_array, issparse

from lmbm_torch.checks import check_finite, check_shape

if TYPE_CHECKING:
    # scipy ships no types, and type checkers guess wrong shapes from the source.
    Features = Any
else:
    Features = np.ndarray | csr_array

# Largest number of generated names (about 3 GB); the widest public data sets have 30 million features.
MAX_NUMBERED = 2**25
# Largest number of entries of a dense matrix (about 16 GB), such as two million instances with 1,000 labels.
MAX_DENSE = 2**31


def numbered(prefix: str, count: int) -> tuple[str, ...]:
    """Return names for columns without names: ``prefix_0``, ``prefix_1`` and so on.

    Raises:
        ValueError: ``count`` is above ``MAX_NUMBERED``, for instance because of a damaged index in a file.
    """
    if count > MAX_NUMBERED:
        raise ValueError(f"{prefix}: expected at most {MAX_NUMBERED} columns without names, got {count}")
    return tuple(f"{prefix}_{index}" for index in range(count))


def check_dense(name: str, num_rows: int, num_columns: int, remedy: str) -> None:
    """Raise ValueError if a matrix is too large to be made dense, for instance from a damaged file."""
    if num_rows * num_columns > MAX_DENSE:
        raise ValueError(
            f"{name}: expected at most {MAX_DENSE} entries to convert to a dense matrix, got {num_rows} x "
            f"{num_columns}; {remedy}"
        )


def with_narrow_indices(features: Features) -> Features:
    """Convert the indices of CSR features to 32 bits if possible; scikit-learn's trees and SVMs need this."""
    most = np.iinfo(np.int32).max
    if not isinstance(features, csr_array) or max(features.nnz, cast(Any, features).shape[1]) > most:
        return features
    places = features.indices.astype(np.int32, copy=False), features.indptr.astype(np.int32, copy=False)
    if places[0] is features.indices and places[1] is features.indptr:
        return features
    return csr_array((features.data, *places), shape=features.shape)


def check_below(name: str, numbers: np.ndarray, count: int) -> None:
    """Raise ValueError unless all numbers are from 0 to count − 1."""
    if not 0 <= numbers.min() <= numbers.max() < count:
        raise ValueError(f"{name}: expected 0 to {count - 1}, got {numbers.min()} to {numbers.max()}")


def check_features(name: str, features: Features) -> None:
    """Raise ValueError unless ``features`` are finite floats, dense or CSR in canonical format."""
    if issparse(features) and not isinstance(features, csr_array):
        kind = type(features).__name__
        raise ValueError(f"{name}: expected a dense array or scipy.sparse.csr_array, got {kind}")
    check_shape(name, features, None, None)
    if features.dtype not in (np.float32, np.float64):
        raise ValueError(f"{name}: expected the dtype float32 or float64, got {features.dtype}")
    if isinstance(features, csr_array):
        features.check_format(full_check=True)
        if not features.has_canonical_format:
            raise ValueError(f"{name}: expected sorted distinct column indices; call sum_duplicates()")
        features = features.data
    check_finite(name, features)
