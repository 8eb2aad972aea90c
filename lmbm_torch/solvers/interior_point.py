"""Interior-point method for hinge problems so badly conditioned that coordinate descent is slow.

The problem is min_w ½‖w‖² + Σ_i u_i [γ − r_i·w]_+ with the dual

    max_α γ Σ α − ½‖Rᵀα‖² over 0 ≤ α ≤ u,   w = Rᵀα.

Primal-dual Newton steps with Mehrotra's predictor and corrector (1992) follow the central path, where all
products α (r·w − γ)_+ and (u − α) (γ − r·w)_+ have one common value, decreasing to zero. The number of steps,
15 to 40, hardly depends on C, on the ranges of the columns or on the correlation of columns. A step solves

    (I + RᵀΘR) Δw = Rᵀ(Θ ρ),   Δα = Θ (ρ − R Δw)

for a positive diagonal Θ (Ferris and Munson 2002), by a factorisation with rounding errors independent of the
units of columns. Duals stay inside the box, so every step has a certificate.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np
from scipy import sparse
from scipy.linalg.blas import dsyrk  # pyright: ignore[reportAttributeAccessIssue]  # compiled
from scipy.linalg.lapack import dpotrf, dpotrs  # pyright: ignore[reportAttributeAccessIssue]  # compiled

# Number of steps without a smaller gap after which the method ends: only rounding is left.
PATIENCE = 12
# Largest share of the distance to the nearest bound that a step goes.
TO_THE_BOUND = 0.995
# Number added to the unit diagonal of a factorised matrix: repeated columns would make it singular.
RIDGE = 1e-13
REFINEMENTS = 2

# From right-hand sides, (columns,) or (columns, several), to (I + RᵀΘR)⁻¹ times these.
Solve = Callable[[np.ndarray], np.ndarray]


class Rows(Protocol):
    """The operations of the steps on R, (instances, columns)."""

    def times(self, weights: np.ndarray) -> np.ndarray:
        """Return R w, (instances,)."""
        ...

    def combine(self, duals: np.ndarray) -> np.ndarray:
        """Return Rᵀα, (columns,)."""
        ...

    def factorise(self, scale: np.ndarray) -> Solve:
        """Return a solver of (I + RᵀΘR) for the diagonal Θ ≥ 0, (instances,)."""
        ...


class MatrixRows(NamedTuple):
    """Rows in memory, dense or CSR, in float64.

    Args:
        matrix: (instances, columns).
    """

    matrix: Any

    def times(self, weights: np.ndarray) -> np.ndarray:
        """Return R w for weights (columns,) or (columns, several)."""
        return self.matrix @ weights

    def combine(self, duals: np.ndarray) -> np.ndarray:
        """Return Rᵀα for duals (instances,) or (instances, several)."""
        return self.matrix.T @ duals

    def factorise(self, scale: np.ndarray) -> Solve:
        """Compute the smaller of RᵀR and RRᵀ; see :class:`Rows`."""
        instances, columns = self.matrix.shape
        wide = instances < columns
        root = np.sqrt(scale)
        if sparse.issparse(self.matrix):
            scaled = sparse.diags_array(root) @ self.matrix
            gram = (scaled @ scaled.T if wide else scaled.T @ scaled).toarray()
        else:
            scaled = root[:, None] * self.matrix
            gram = dsyrk(1.0, scaled.T, trans=wide, lower=1)
        gram.flat[:: len(gram) + 1] += 1
        inner = factorised(gram)

        def solve(right: np.ndarray) -> np.ndarray:
            # With fewer instances than columns, by the matrix inversion lemma.
            return right - scaled.T @ inner(scaled @ right) if wide else inner(right)

        def refined(right: np.ndarray) -> np.ndarray:
            solution = solve(right)
            for _ in range(REFINEMENTS):
                solution += solve(right - solution - scaled.T @ (scaled @ solution))
            return solution

        return refined


class _Point(NamedTuple):
    """A point inside the box, with multipliers z of 0 ≤ α and v of α ≤ u; all (instances,) and positive.

    Args:
        room: u − α, stored separately because the difference would round to zero.
    """

    duals: np.ndarray
    room: np.ndarray
    low: np.ndarray
    high: np.ndarray

    @classmethod
    def middle(cls, rows: Rows, upper: np.ndarray, margin: float) -> _Point:
        half = 0.5 * upper
        beyond = rows.times(rows.combine(half)) - margin
        spread = margin + np.abs(beyond).mean()
        return cls(half, half, np.maximum(beyond, 0) + spread, np.maximum(-beyond, 0) + spread)

    @property
    def mean(self) -> float:
        """Return the mean of the products αz and (u − α)v."""
        return float(self.duals @ self.low + self.room @ self.high) / (2 * len(self.duals))

    def moved(self, length: float, step: _Point) -> _Point:
        return _Point(*(value + length * change for value, change in zip(self, step, strict=True)))

    def longest(self, step: _Point) -> float:
        """Return the longest step, up to 1, with all entries at or above zero."""
        return min(
            float((value[change < 0] / -change[change < 0]).min(initial=1.0))
            for value, change in zip(self, step, strict=True)
        )


def ascend(
    rows: Rows, upper: np.ndarray, margin: float, tol: float, stop: np.ndarray | None = None
) -> np.ndarray:
    """Return duals strictly inside the box, (instances,), with a relative gap of at most ``tol``.

    If C · (range of the columns)² is above about 1e13, float64 cannot represent the solution; then the best
    duals so far are returned.

    Args:
        rows: R.
        upper: u > 0, (instances,).
        margin: γ.
        tol: relative duality gap at which to stop.
        stop: (1,), another thread sets it to true to end the iterations.
    """
    point = _Point.middle(rows, upper, margin)
    best, least, since = point.duals, np.inf, 0
    while since < PATIENCE and not (stop is not None and stop[0]):
        weights = rows.combine(point.duals)
        beyond = rows.times(weights) - margin
        primal = 0.5 * weights @ weights + upper @ np.maximum(-beyond, 0)
        gap = primal + 0.5 * weights @ weights - margin * point.duals.sum()
        since += 1
        if gap < least:
            best, least, since = point.duals, gap, 0
        if gap <= tol * primal:
            break
        try:
            point = _step(rows, point, beyond)
        except np.linalg.LinAlgError:
            break
    return best


def _step(rows: Rows, point: _Point, beyond: np.ndarray) -> _Point:
    """Return the point after a predictor and a corrector step along the central path."""
    duals, room, low, high = point
    scale = 1 / (low / duals + high / room)
    solve = rows.factorise(scale)

    def towards(low_product: np.ndarray, high_product: np.ndarray) -> _Point:
        """Return the step towards the given products αz and (u − α)v, to first order."""
        wish = low_product / duals - high_product / room - beyond
        step = scale * (wish - rows.times(solve(rows.combine(scale * wish))))
        down, up = (low_product - low * step) / duals - low, (high_product + high * step) / room - high
        return _Point(step, -step, down, up)

    straight = towards(np.zeros_like(duals), np.zeros_like(duals))
    left = point.moved(point.longest(straight), straight).mean / point.mean
    centre = point.mean * left**3
    step = towards(centre - straight.duals * straight.low, centre - straight.room * straight.high)
    return point.moved(TO_THE_BOUND * point.longest(step), step)


def factorised(matrix: np.ndarray) -> Solve:
    """Return a solver for a positive definite matrix; units may differ, and only the lower half is read."""
    unit = 1 / np.sqrt(np.diagonal(matrix))
    scaled = unit[:, None] * matrix * unit
    scaled.flat[:: len(scaled) + 1] += RIDGE
    factor, failed = dpotrf(scaled, lower=1, overwrite_a=1)
    if failed:
        raise np.linalg.LinAlgError(
            f"matrix: expected a positive definite matrix, got one whose leading minor {failed} is not"
        )

    def solve(right: np.ndarray) -> np.ndarray:
        units = unit if right.ndim == 1 else unit[:, None]
        return units * dpotrs(factor, units * right, lower=1)[0]

    return solve
