"""Equal columns of sparse features as one: words that one document alone has, and those that none has.

Columns that are equal have equal weights where ½‖w‖² and losses of ⟨w, x⟩ are least, and one column that is
√m times as large stands for m of them at the same ‖w‖². Of texts, most columns are so rare that a third are
another's equals, and of hashed ones most are of nothing but zeros.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse

from lmbm_torch.solvers.networks.problems import Features, canonical

__all__ = ["merged"]


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
