"""Search for labellings under linear rules, and for contradictory rules, by HiGHS integer programs."""

from __future__ import annotations

from typing import Any

import numpy as np

from lmbm_torch.extras import naming_extras

__all__ = []

# Threshold for rounding solutions of HiGHS, which are 0 or 1 up to a small tolerance.
HALF = 0.5


def completion(
    matrix: np.ndarray, bounds: np.ndarray, labels: np.ndarray, known: np.ndarray
) -> np.ndarray | None:
    """Return the labelling nearest to ``labels`` that obeys all rules and agrees with ``known``.

    If no labelling does, return None.

    Args:
        matrix, bounds: rules Σ_i matrix_ri y_i ≤ bounds_r.
        labels: (labels,) in {0, 1}.
        known: (labels,) in {0, 1, NaN}, NaN for a free label.

    Raises:
        ImportError: SciPy is missing.
    """
    with naming_extras():
        from scipy.optimize import Bounds, LinearConstraint, milp

    num_labels = len(labels)
    if num_labels == 0:
        return labels.copy() if (bounds >= 0).all() else None
    # Annotate as Any: SciPy's annotations expect numbers, although arrays are allowed, too.
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
    """Return the indices of rules that contradict each other given ``known``, without superfluous rules.

    Args:
        matrix, bounds, known: see :func:`completion`; the rules must contradict each other.
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
