"""What cutting planes say at given weights, and which weights they make, compiled.

The functions take what those of :mod:`lmbm_torch.kernels.dual.plain.planes` take; no array has an entry for
each entry of the planes.
"""

from __future__ import annotations

import numpy as np

from lmbm_torch.kernels.jit import compiled


def products(planes, first, unary, couplings):
    """⟨w, ψ⟩ of each plane, (planes,)."""
    return _products(planes.start, planes.index, planes.value, first, unary, couplings)


def sums(planes, first, dual_coef, size, num_couplings):
    """Σ_p α_p ψ_p: of the rows' outputs (size,), then of couplings (num_couplings,)."""
    total = np.zeros(size + num_couplings)
    _add_planes(planes.start, planes.index, planes.value, first, dual_coef, total[:size], total[size:])
    return total


def entries(planes, chosen, start):
    """Index and value of the entries of the ``chosen`` planes, which begin at ``start`` there."""
    index, value = np.empty(start[-1], planes.index.dtype), np.empty(start[-1])
    _copy_entries(planes.start, planes.index, planes.value, chosen, start, index, value)
    return index, value


@compiled
def _products(start, index, value, first, unary, couplings):
    found = np.empty(len(first))
    for p in range(len(first)):
        total = 0.0
        for entry in range(start[p], start[p + 1]):
            place = index[entry]
            total += value[entry] * (couplings[-1 - place] if place < 0 else unary[first[p] + place])
        found[p] = total
    return found


@compiled
def _add_planes(start, index, value, first, dual_coef, unary, couplings):
    for p in range(len(first)):
        dual = dual_coef[p]
        # Most planes that are remembered have none.
        if dual == 0:
            continue
        for entry in range(start[p], start[p + 1]):
            place = index[entry]
            if place < 0:
                couplings[-1 - place] += dual * value[entry]
            else:
                unary[first[p] + place] += dual * value[entry]


@compiled
def _copy_entries(start, index, value, chosen, start_of, index_of, value_of):
    for c in range(len(chosen)):
        entry = start[chosen[c]]
        for target in range(start_of[c], start_of[c + 1]):
            index_of[target], value_of[target] = index[entry], value[entry]
            entry += 1
