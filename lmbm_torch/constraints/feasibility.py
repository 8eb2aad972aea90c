"""Labellings under linear rules, and sets of contradictory rules, found by integer programs of HiGHS."""

from __future__ import annotations

from typing import Any

import numpy as np

from lmbm_torch.extras import naming_extras

__all__ = []

# Solutions of HiGHS are 0 or 1 up to a small tolerance: this threshold rounds them.
HALF = 0.5


def completion(
    matrix: np.ndarray, bounds: np.ndarray, labels: np.ndarray, known: np.ndarray
) -> np.ndarray | None:
    """Return the labelling nearest to ``labels`` under all rules and the values ``known``.

    If no labelling obeys both, return None.

    Args:
        matrix, bounds: rules Σ_i matrix_ri y_i ≤ bounds_r.
        labels: (labels,) in {0, 1}.
        known: (labels,) in {0, 1, NaN}.

    Raises:
        ImportError: SciPy is missing.
    """
    with naming_extras():
        from scipy.optimize import Bounds, LinearConstraint, milp

    num_labels = len(labels)
    if num_labels == 0:
        return labels.copy() if (bounds >= 0).all() else None
    # Any, because SciPy's annotations expect numbers where arrays are allowed, too.
    least: Any = np.where(np.isnan(known), 0, known)
    most: Any = np.where(np.isnan(known), 1, known)
    upper: Any = bounds
    rules = LinearConstraint(matrix, ub=upper) if len(bounds) else ()
    found = milp(
        1.0 - 2.0 * labels, constraints=rules, integrality=np.ones(num_labels), bounds=Bounds(least, most)
    )
    if found.x is None:
        if found.status != 2:
            raise RuntimeError(
                f"HiGHS: expected a labelling or a proof of infeasibility, got {found.message}"
            )
        return None
    return (found.x > HALF).astype(np.float64)


def contradiction(matrix: np.ndarray, bounds: np.ndarray, known: np.ndarray) -> list[int]:
    """Return indices of contradictory rules given ``known``; no rule of the answer can be left out.

    Args:
        matrix, bounds, known: see :func:`completion`; no labelling may obey all rules.
    """
    kept = list(range(len(bounds)))
    zeros = np.zeros(len(known))
    # Try to leave out half of the rules first, then smaller parts: usually few rules form a contradiction.
    size = len(kept) // 2
    while size >= 1:
        start = 0
        while start < len(kept):
            rest = kept[:start] + kept[start + size :]
            if completion(matrix[rest], bounds[rest], zeros, known) is None:
                kept = rest
            else:
                start += size
        size //= 2
    return kept
