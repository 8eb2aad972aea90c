"""Proximal point steps by semismooth Newton for a Boltzmann machine's hinge problem, to a certified gap.

A pass maximises the dual less ‖α − α_old‖²/(2σ) over its box. In the weights that is a smooth problem,

    min_w ½ Σ_j η_j w_j² + Σ_il max_{0 ≤ α ≤ C_l} [α (γ − m_il) − (α − α_old)²/(2σ)]

whose maximisers are α_il = clip(α_old + σ (γ − m_il)), and a piecewise quadratic one: Newton steps with an
exact line search solve it, each on the face of the duals that are free at its point. σ grows from pass to
pass, so that few are needed (Rockafellar 1976; for support vector machines Yan and Li 2020, "An efficient
augmented Lagrangian method for support vector machine").

Coordinate descent finds a face quickly but crawls along it, the slower the more the labels' problems depend
on each other. Here the labels' faces, each of a few hundred duals, are solved directly and the weights that
they share by a Schur complement: the cost hardly depends on how strongly labels are coupled.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy import sparse
from scipy.linalg import cho_factor, cho_solve

from lmbm_torch.checks import check_count, check_positive, check_shape
from lmbm_torch.solvers import shared_dual_coordinate
from lmbm_torch.solvers.shared_dual_coordinate import SharedCallback, SharedState, certified
from lmbm_torch.solvers.shared_problem import Context, SharedProblem, SharedWeights, dense

# σ in units of the duals' inverse mean curvature: the first, and its growth from pass to pass. Faster growth
# makes for fewer passes of more Newton steps, twice as many in all for 10 (Scene and Yeast).
FIRST_STEP = 10.0
GROWTH = 3.0
LARGEST_STEP = 1e7
MAX_NEWTON_STEPS = 200
# A pass ends where the weights and those that the duals make differ by this share of the duals' own change.
INNER_TOLERANCE = 1e-3
LINE_TOLERANCE = 1e-2
MAX_LINE_STEPS = 30


def init(problem: SharedProblem, dual_coef: np.ndarray | None = None) -> SharedState:
    """The state at ``dual_coef`` (labels, instances), by default at zero.

    Raises:
        ValueError: duals of the wrong shape or outside their box [0, C_l].
    """
    return shared_dual_coordinate.init(problem, dual_coef)


def update(problem: SharedProblem, state: SharedState) -> SharedState:
    """One proximal step; its σ follows from the number of passes.

    Returns:
        The state after it, no lower in the dual.

    Raises:
        ValueError: a state of another problem.
    """
    check_shape("state.dual_coef", state.dual_coef, *problem.spins.shape)
    contexts = [problem.context(k) for k in range(problem.num_labels)]
    growth = min(FIRST_STEP * GROWTH ** min(state.num_passes, 100), LARGEST_STEP)
    # Rows of nothing but zeros have no curvature, and any σ will do.
    sigma = growth / (float(problem.curvature().mean()) or 1.0)
    new = _maximise(problem, contexts, state, sigma)
    # Before the last Newton step has converged, the new duals may be worse than the old; between is best.
    return certified(problem, _between(problem, state, new), state.num_passes + 1)


def run(
    problem: SharedProblem,
    *,
    tol: float = 1e-3,
    max_passes: int = 100,
    dual_coef: np.ndarray | None = None,
    callback: SharedCallback | None = None,
) -> SharedState:
    """Solve the problem to a relative duality gap of ``tol``.

    Args:
        tol: the relative duality gap at which it is done.
        max_passes: the end, reached or not; ``state.gap`` tells.
        dual_coef: (labels, instances), duals to start from, such as those of a smaller C.
        callback: called after every pass; may raise to stop.

    Raises:
        ValueError: ``tol`` not above zero, ``max_passes`` below one, or duals outside their box.
    """
    check_positive("tol", tol)
    check_count("max_passes", max_passes)
    state = init(problem, dual_coef)
    while state.num_passes < max_passes and state.gap > tol:
        state = update(problem, state)
        if callback is not None:
            callback(state)
    return state


def _maximise(
    problem: SharedProblem, contexts: list[Context], state: SharedState, sigma: float
) -> np.ndarray:
    """The duals of a proximal step from the state's."""
    old, weights = state.dual_coef, state.weights
    margins = problem.margins(weights).T
    duals = old
    for _ in range(MAX_NEWTON_STEPS):
        wished = old + sigma * (problem.margin - margins)
        duals = np.clip(wished, 0.0, problem.upper)
        residual = _combine(weights, problem.weights(duals), -1.0)
        if problem.square(residual) <= 0.5 * INNER_TOLERANCE * np.square(duals - old).sum() / sigma:
            break
        free = (wished > 0) & (wished < problem.upper)
        direction = _newton_direction(problem, contexts, residual, free, sigma)
        change = problem.margins(direction).T
        length = _line_search(problem, weights, direction, wished, sigma * change, change)
        weights = _combine(weights, direction, length)
        margins = margins + length * change
    return duals


class _Face(NamedTuple):
    """A label's free duals: its rows of features and of shared weights, and their regularised Gram matrix."""

    label: int
    rows: np.ndarray | sparse.csr_array
    constant: float
    shared: np.ndarray
    seen: np.ndarray
    sigma: float
    factor: tuple[np.ndarray, bool]

    @classmethod
    def of(
        cls, problem: SharedProblem, label: int, context: Context, free: np.ndarray, sigma: float
    ) -> _Face:
        members = np.flatnonzero(free)
        rows = problem.features[members].astype(np.float64)
        constant = problem.constant
        if len(members) <= problem.num_columns:
            gram = dense(rows @ rows.T) + constant
            gram[np.diag_indices_from(gram)] += 1 / sigma
        else:
            # Fewer features than free duals: the inverse follows from that of I + σ RᵀR.
            extended = np.hstack([dense(rows), np.full((len(members), 1), constant)])
            gram = sigma * (extended.T @ extended)
            gram[np.diag_indices_from(gram)] += 1
        factor = cho_factor(gram, lower=True, overwrite_a=True, check_finite=False)
        return cls(label, rows, constant, context.columns[members, 1:], context.weights, sigma, factor)

    def solve(self, right: np.ndarray) -> np.ndarray:
        """(I/σ + R Rᵀ)⁻¹ right."""
        if len(self.factor[0]) == len(self.shared):
            return cho_solve(self.factor, right, check_finite=False)
        inner = cho_solve(self.factor, self.add_up(right), check_finite=False)
        return self.sigma * (right - self.sigma * self.fields(inner))

    def fields(self, weights: np.ndarray) -> np.ndarray:
        """R times (features + 1, …)."""
        return self.rows @ weights[:-1] + self.constant * weights[-1]

    def add_up(self, steps: np.ndarray) -> np.ndarray:
        """Rᵀ times (free duals, …)."""
        return np.concatenate([self.rows.T @ steps, self.constant * steps.sum(0, keepdims=True)])


def _newton_direction(
    problem: SharedProblem, contexts: list[Context], residual: SharedWeights, free: np.ndarray, sigma: float
) -> SharedWeights:
    """−(H + σ Σ_free f fᵀ)⁻¹ H residual, H the diagonal of the penalties.

    By the matrix inversion lemma all is done among the free duals, label by label but for the shared weights.
    """
    features, cliques = -residual.features, -residual.cliques
    labels = np.flatnonzero(free.any(1))
    faces = [_Face.of(problem, k, contexts[k], free[k], sigma) for k in labels.tolist()]
    schur = np.diag(problem.penalty)
    solved, pull = [], np.zeros(len(cliques))
    for face in faces:
        right = face.fields(features[:, face.label]) + face.shared @ cliques[face.seen]
        both = face.solve(np.column_stack([face.shared, right]))
        solved.append(both)
        products = face.shared.T @ both
        schur[np.ix_(face.seen, face.seen)] += products[:, :-1]
        pull[face.seen] += products[:, -1]
    push = np.linalg.solve(schur, pull)
    for face, both in zip(faces, solved, strict=True):
        steps = both[:, -1] - both[:, :-1] @ push[face.seen]
        features[:, face.label] -= face.add_up(steps)
    # Σ Fᵀ(steps) = pull − (Schur − H) push = H push.
    return SharedWeights(features, cliques - push)


def _line_search(
    problem: SharedProblem,
    weights: SharedWeights,
    direction: SharedWeights,
    wished: np.ndarray,
    fall: np.ndarray,
    change: np.ndarray,
) -> float:
    """The length at which the slope, a rising and piecewise linear function, is nearly zero."""
    slope_of_square = _inner(problem, weights, direction)
    curvature_of_square = _inner(problem, direction, direction)
    start = abs(slope_of_square - float((np.clip(wished, 0, problem.upper) * change).sum()))
    low, high, length = 0.0, np.inf, 1.0
    for _ in range(MAX_LINE_STEPS):
        moved = wished - length * fall
        slope = slope_of_square + length * curvature_of_square
        slope -= float((np.clip(moved, 0.0, problem.upper) * change).sum())
        if abs(slope) <= LINE_TOLERANCE * start:
            break
        low, high = (low, length) if slope > 0 else (length, high)
        free = (moved > 0) & (moved < problem.upper)
        length -= slope / (curvature_of_square + float((fall * change)[free].sum()))
        if not low < length < high:
            length = 2 * low if high == np.inf else (low + high) / 2
    return length


def _between(problem: SharedProblem, state: SharedState, new: np.ndarray) -> np.ndarray:
    """The best duals on the way from the state's to ``new``."""
    change = _combine(problem.weights(new), state.weights, -1.0)
    gain = problem.margin * float((new - state.dual_coef).sum()) - _inner(problem, state.weights, change)
    square = _inner(problem, change, change)
    share = 1.0 if gain >= square else max(gain, 0.0) / square
    return (1 - share) * state.dual_coef + share * new


def _combine(weights: SharedWeights, other: SharedWeights, factor: float) -> SharedWeights:
    return SharedWeights(weights.features + factor * other.features, weights.cliques + factor * other.cliques)


def _inner(problem: SharedProblem, weights: SharedWeights, other: SharedWeights) -> float:
    """Σ_j η_j w_j w'_j."""
    cliques = problem.penalty @ (weights.cliques * other.cliques)
    return float((weights.features * other.features).sum() + cliques)
