"""Rows of a feature matrix inside compiled code: one name for dense arrays and CSR triples.

``rows`` is what :func:`readable` makes of a matrix: the dense ``(instances, features)`` array itself, or a
triple ``(data, indices, indptr)``. A solver is written once for both. Loops run over slices and the indices
are unsigned: numba then need not allow for negative ones, which lets LLVM vectorise (measured on text, two to
three times as fast).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numba.extending import overload

from lmbm_torch.kernels.jit import njit


def readable(features: Any) -> Any:
    """A dense array, a SciPy CSR array as the triple that compiled code reads.

    They are views that cannot be written: features may be those of a file, and numba compiles code of its own
    for what cannot be written.
    """
    if isinstance(features, np.ndarray):
        return _unwritable(features)
    indices = features.indices.view(f"u{features.indices.itemsize}")
    return _unwritable(features.data), _unwritable(indices), _unwritable(features.indptr)


def _unwritable(array: np.ndarray) -> np.ndarray:
    view = array.view()
    view.flags.writeable = False
    return view


def _entries(rows, i) -> Any:
    """Columns and values of row i; no columns for a dense row, whose values are in order."""
    raise TypeError("called from compiled code alone")


def _column(columns, t) -> Any:
    """The column of a row's entry t."""
    raise TypeError("called from compiled code alone")


@overload(_entries, inline="always")
def _entries_of(rows, i):
    if isinstance(rows, types.Array):
        return lambda rows, i: (None, rows[i])

    def sparse(rows, i):
        data, indices, indptr = rows
        start, stop = indptr[i], indptr[i + 1]
        return indices[start:stop], data[start:stop]

    return sparse


@overload(_column, inline="always")
def _column_of(columns, t):
    if isinstance(columns, types.NoneType):
        return lambda columns, t: t
    return lambda columns, t: columns[t]


@njit(inline="always")
def row_dot(rows, i, weights):
    """Inner product of row i with ``weights``."""
    columns, values = _entries(rows, i)
    total = 0.0
    for t in range(len(values)):
        total += values[t] * weights[_column(columns, t)]
    return total


@njit(inline="always")
def row_add(rows, i, scale, weights):
    """weights += scale · row i."""
    columns, values = _entries(rows, i)
    for t in range(len(values)):
        weights[_column(columns, t)] += scale * values[t]


def by_output(rows, weights):
    """(columns, outputs) as a view of what suits the rows: of dense ones (outputs, columns), row-major.

    An array of one row or column is both row- and column-major, which would compile everything anew.
    """
    raise TypeError("called from compiled code alone")


@overload(by_output)
def _by_output(rows, weights):
    if isinstance(rows, types.Array):
        return lambda rows, weights: weights.T
    return lambda rows, weights: weights


def row_support(rows, members, count, seen, support):
    """Collect the columns in which some of the rows ``members[:count]`` may be non-zero; return how many."""
    raise TypeError("called from compiled code alone")


def row_dot_block(rows, i, weights, out):
    """out[k] += ⟨row i, weights[:, k]⟩ for every k; dense, fastest where ``weights`` is column-major."""
    raise TypeError("called from compiled code alone")


def row_add_block(rows, i, scale, weights):
    """weights[:, k] += scale[k] · row i for every k; fastest where ``weights`` is column-major, too."""
    raise TypeError("called from compiled code alone")


@overload(row_support)
def _row_support(rows, members, count, seen, support):
    if isinstance(rows, types.Array):

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


@overload(row_dot_block, inline="always")
def _row_dot_block(rows, i, weights, out):
    if isinstance(rows, types.Array) and weights.layout == "F":

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


@overload(row_add_block, inline="always")
def _row_add_block(rows, i, scale, weights):
    if isinstance(rows, types.Array) and weights.layout == "F":

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
