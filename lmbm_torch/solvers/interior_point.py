"""Interior-point method for minimising hinge losses where bad conditioning makes coordinate descent slow.

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

# The method ends after this number of steps without a smaller gap: then round-off prevents a smaller one.
PATIENCE = 12
# Step length as a share of the distance to the nearest bound: below 1, so duals stay strictly inside.
TO_THE_BOUND = 0.995
# Number added to the diagonal of ones before a factorisation: repeated columns would make a matrix singular.
RIDGE = 1e-13
REFINEMENTS = 2

# Function from a right-hand side b, (columns,) or (columns, several), to the solution (I + RᵀΘR)⁻¹ b.
Solve = Callable[[np.ndarray], np.ndarray]


class Rows(Protocol):
    """Operations of the interior-point steps on the matrix R, (instances, columns)."""

    def times(self, weights: np.ndarray) -> np.ndarray:
        """Return the product R w for weights w, (instances,)."""
        ...

    def combine(self, duals: np.ndarray) -> np.ndarray:
        """Return the product Rᵀα for duals α, (columns,)."""
        ...

    def factorise(self, scale: np.ndarray) -> Solve:
        """Return a function that solves systems with I + RᵀΘR, where ``scale`` is the diagonal Θ ≥ 0."""
        ...


class MatrixRows(NamedTuple):
    """The matrix R in memory, dense or CSR, in float64.

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
        """Factorise the smaller of I + RᵀΘR and I + Θ^½RRᵀΘ^½, and return a solver as in :class:`Rows`."""
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
            # If there are fewer instances than columns, use the matrix inversion lemma.
            return right - scaled.T @ inner(scaled @ right) if wide else inner(right)

        def refined(right: np.ndarray) -> np.ndarray:
            solution = solve(right)
            for _ in range(REFINEMENTS):
                solution += solve(right - solution - scaled.T @ (scaled @ solution))
            return solution

        return refined


class _Point(NamedTuple):
    """Duals α strictly between 0 and u, with the multipliers of both bounds; all (instances,), positive.

    Args:
        duals: α.
        room: u − α, stored separately because the difference would round to zero.
        low: multipliers z of the bound 0 ≤ α.
        high: multipliers v of the bound α ≤ u.
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
        """Return the largest factor of ``step``, up to 1, with which all entries stay non-negative."""
        return min(
            float((value[change < 0] / -change[change < 0]).min(initial=1.0))
            for value, change in zip(self, step, strict=True)
        )


def ascend(
    rows: Rows, upper: np.ndarray, margin: float, tol: float, stop: np.ndarray | None = None
) -> np.ndarray:
    """Maximise the dual; return duals α, 0 < α < u, (instances,), with a relative gap of at most ``tol``.

    If C · (range of the columns)² is above about 1e13, float64 cannot represent the solution; then the best
    duals so far are returned.

    Args:
        rows: R.
        upper: u > 0, (instances,).
        margin: γ.
        tol: relative duality gap at which to stop.
        stop: (1,); another thread sets the entry to true to end the iterations.
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
    """Factorise a positive definite matrix, of which only the lower half is read; return the solver."""
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
