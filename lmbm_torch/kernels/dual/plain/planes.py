"""What cutting planes say at given weights, and which weights they make, in plain NumPy.

Planes are those of :class:`lmbm_torch.solvers.structural.problems.CuttingPlanes`; ``first`` (planes,) is
where the weights of each plane's example begin in an array of all rows' outputs.
"""

from __future__ import annotations

import numpy as np


def products(planes, first, unary, couplings):
    """⟨w, ψ⟩ of each plane, (planes,).

    Args:
        unary: (rows · outputs,), the scores of all rows' outputs.
        couplings: (couplings,).
    """
    every = np.concatenate([unary, couplings])
    terms = planes.value * every[_positions(planes, first, len(unary))]
    return np.bincount(planes.plane, terms, len(planes))


def sums(planes, first, dual_coef, size, num_couplings):
    """Σ_p α_p ψ_p: of the rows' outputs (size,), then of couplings (num_couplings,)."""
    terms = planes.value * dual_coef[planes.plane]
    return np.bincount(_positions(planes, first, size), terms, size + num_couplings)


def entries(planes, chosen, start):
    """Index and value of the entries of the ``chosen`` planes, which begin at ``start`` there."""
    count = np.diff(start)
    places = np.arange(start[-1]) + np.repeat(planes.start[chosen] - start[:-1], count)
    return planes.index[places], planes.value[places]


def _positions(planes, first, size):
    """Where each entry's weight stands among the rows' outputs and, after these, the couplings."""
    return np.where(planes.index < 0, size - 1 - planes.index, first[planes.plane] + planes.index)
