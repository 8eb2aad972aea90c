"""Rows of a feature matrix inside compiled code: one name for dense arrays and CSR triples.

``rows`` is a dense ``(instances, features)`` array or a triple ``(data, indices, indptr)``; numba picks the
body by its type, so a solver is written once for both.
"""

from __future__ import annotations

from numba import types
from numba.extending import overload


def row_dot(rows, i, weights):
    """Inner product of row i with ``weights``."""
    raise TypeError("called from compiled code alone")


def row_add(rows, i, scale, weights):
    """weights += scale · row i."""
    raise TypeError("called from compiled code alone")


def row_support(rows, members, count, seen, support):
    """Collect the columns in which some of the rows ``members[:count]`` may be non-zero; return how many."""
    raise TypeError("called from compiled code alone")


def row_dot_block(rows, i, weights, out):
    """out[k] += ⟨row i, weights[:, k]⟩ for every k."""
    raise TypeError("called from compiled code alone")


def row_add_block(rows, i, scale, weights):
    """weights[:, k] += scale[k] · row i for every k."""
    raise TypeError("called from compiled code alone")


@overload(row_dot, inline="always")
def _row_dot(rows, i, weights):
    if isinstance(rows, types.Array):

        def dense(rows, i, weights):
            total = 0.0
            for d in range(rows.shape[1]):
                total += rows[i, d] * weights[d]
            return total

        return dense

    def sparse(rows, i, weights):
        data, indices, indptr = rows
        total = 0.0
        for t in range(indptr[i], indptr[i + 1]):
            total += data[t] * weights[indices[t]]
        return total

    return sparse


@overload(row_add, inline="always")
def _row_add(rows, i, scale, weights):
    if isinstance(rows, types.Array):

        def dense(rows, i, scale, weights):
            for d in range(rows.shape[1]):
                weights[d] += scale * rows[i, d]

        return dense

    def sparse(rows, i, scale, weights):
        data, indices, indptr = rows
        for t in range(indptr[i], indptr[i + 1]):
            weights[indices[t]] += scale * data[t]

    return sparse


@overload(row_support)
def _row_support(rows, members, count, seen, support):
    if isinstance(rows, types.Array):

        def dense(rows, members, count, seen, support):
            for d in range(rows.shape[1]):
                support[d] = d
            return rows.shape[1]

        return dense

    def sparse(rows, members, count, seen, support):
        _, indices, indptr = rows
        found = 0
        for a in range(count):
            for t in range(indptr[members[a]], indptr[members[a] + 1]):
                if not seen[indices[t]]:
                    seen[indices[t]] = True
                    support[found] = indices[t]
                    found += 1
        for f in range(found):
            seen[support[f]] = False
        return found

    return sparse


@overload(row_dot_block, inline="always")
def _row_dot_block(rows, i, weights, out):
    if isinstance(rows, types.Array):

        def dense(rows, i, weights, out):
            for d in range(rows.shape[1]):
                for k in range(out.shape[0]):
                    out[k] += rows[i, d] * weights[d, k]

        return dense

    def sparse(rows, i, weights, out):
        data, indices, indptr = rows
        for t in range(indptr[i], indptr[i + 1]):
            for k in range(out.shape[0]):
                out[k] += data[t] * weights[indices[t], k]

    return sparse


@overload(row_add_block, inline="always")
def _row_add_block(rows, i, scale, weights):
    if isinstance(rows, types.Array):

        def dense(rows, i, scale, weights):
            for d in range(rows.shape[1]):
                for k in range(scale.shape[0]):
                    weights[d, k] += scale[k] * rows[i, d]

        return dense

    def sparse(rows, i, scale, weights):
        data, indices, indptr = rows
        for t in range(indptr[i], indptr[i + 1]):
            for k in range(scale.shape[0]):
                weights[indices[t], k] += scale[k] * data[t]

    return sparse
