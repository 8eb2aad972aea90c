"""Operations on rows of features in compiled code, with the same functions for dense and CSR features.

``rows`` is the result of :func:`readable`: a dense array ``(instances, features)``, or a triple ``(data,
indices, indptr)``. Loops have unsigned indices: without code for negative indices LLVM vectorises loops,
which is two to three times as fast on texts.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lmbm_torch.kernels.jit import by_type, inlined


def readable(features: Any) -> Any:
    """Convert features for compiled code: a dense array unchanged, a SciPy CSR array to a triple.

    All results are read-only views, because numba would compile separate code for writable features.
    """
    if isinstance(features, np.ndarray):
        return _unwritable(features)
    indices = features.indices.view(f"u{features.indices.itemsize}")
    return _unwritable(features.data), _unwritable(indices), _unwritable(features.indptr)


def _unwritable(array: np.ndarray) -> np.ndarray:
    view = array.view()
    view.flags.writeable = False
    return view


def _is_dense(rows):
    """Return whether rows are a dense array; ``rows`` may also be numba's type of rows."""
    return hasattr(rows, "ndim")


def _is_by_column(weights):
    """Return whether an array, given as an array or as numba's type, is column-major."""
    return weights.layout == "F" if hasattr(weights, "layout") else weights.flags.f_contiguous


@by_type(inline="always")
def _entries(rows, i):
    """Return column indices and values of row i; a dense row has no column indices."""
    if _is_dense(rows):
        return lambda rows, i: (None, rows[i])

    def sparse(rows, i):
        data, indices, indptr = rows
        start, stop = indptr[i], indptr[i + 1]
        return indices[start:stop], data[start:stop]

    return sparse


@by_type(inline="always")
def _column(columns, t):
    """Return the column of entry t of a row."""
    return (lambda columns, t: columns[t]) if hasattr(columns, "ndim") else (lambda columns, t: t)


@inlined
def row_dot(rows, i, weights):
    """Return the inner product of row i with ``weights``."""
    columns, values = _entries(rows, i)
    total = 0.0
    for t in range(len(values)):
        total += values[t] * weights[_column(columns, t)]
    return total


@inlined
def row_add(rows, i, scale, weights):
    """Add scale · row i to the weights."""
    columns, values = _entries(rows, i)
    for t in range(len(values)):
        weights[_column(columns, t)] += scale * values[t]


@by_type
def by_output(rows, weights):
    """Return weights as (columns, outputs); for dense rows the argument is (outputs, columns), row-major.

    The layout is explicit: numba would compile separate code for a single row, which has both layouts.
    """
    if _is_dense(rows):
        return lambda rows, weights: weights.T
    return lambda rows, weights: weights


@by_type
def row_support(rows, members, count, seen, support):
    """Write the columns that are non-zero in any row ``members[:count]`` to ``support``; count them."""
    if _is_dense(rows):

        def dense(rows, members, count, seen, support):
            for d in range(rows.shape[1]):
                support[d] = d
            return rows.shape[1]

        return dense

    def sparse(rows, members, count, seen, support):
        found = 0
        for a in range(count):
            columns, _ = _entries(rows, members[a])
            for column in columns:
                if not seen[column]:
                    seen[column] = True
                    support[found] = column
                    found += 1
        for f in range(found):
            seen[support[f]] = False
        return found

    return sparse


@by_type(inline="always")
def row_dot_block(rows, i, weights, out):
    """Add ⟨row i, weights[:, k]⟩ to out[k] for every k; fastest with column-major ``weights``."""
    if _is_dense(rows) and _is_by_column(weights):

        def by_column(rows, i, weights, out):
            for k in range(len(out)):
                out[k] += row_dot(rows, i, weights[:, k])

        return by_column

    def by_entry(rows, i, weights, out):
        columns, values = _entries(rows, i)
        for t in range(len(values)):
            weight = weights[_column(columns, t)]
            for k in range(len(out)):
                out[k] += values[t] * weight[k]

    return by_entry


@by_type(inline="always")
def row_add_block(rows, i, scale, weights):
    """Add scale[k] · row i to weights[:, k] for every k; fastest with column-major ``weights``."""
    if _is_dense(rows) and _is_by_column(weights):

        def by_column(rows, i, scale, weights):
            for k in range(len(scale)):
                if scale[k] != 0.0:
                    row_add(rows, i, scale[k], weights[:, k])

        return by_column

    def by_entry(rows, i, scale, weights):
        columns, values = _entries(rows, i)
        for t in range(len(values)):
            weight = weights[_column(columns, t)]
            for k in range(len(scale)):
                weight[k] += scale[k] * values[t]

    return by_entry
