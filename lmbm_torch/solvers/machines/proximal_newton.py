"""Proximal point steps by semismooth Newton for a Boltzmann machine's hinge problem, to a certified gap.

A pass maximises the dual minus ‖α − α_old‖²/(2σ) over the box. In the weights the problem is smooth,

    min_w ½ Σ_j η_j w_j² + Σ_il max_{0 ≤ α ≤ C_l} [α (γ − m_il) − (α − α_old)²/(2σ)]

with maximisers α_il = clip(α_old + σ (γ − m_il)), and piecewise quadratic. It is solved by Newton steps with
an exact line search; each step uses the face: the duals strictly between their bounds at the current point.
σ grows from pass to pass, so few passes are needed (Rockafellar 1976; for support vector machines Yan
and Li 2020, "An efficient augmented Lagrangian method for support vector machine").

Coordinate descent finds a face quickly, but is slow along the face if the labels' problems depend much on
each other. So a few sweeps of coordinate descent come first. Then the labels' faces, each of a few hundred
duals, are solved directly in several threads, and the shared weights by a Schur complement: the cost hardly
depends on the strength of the couplings. If columns have ranges of different orders of magnitude,
:mod:`~lmbm_torch.solvers.interior_point` finishes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse
from scipy.linalg.lapack import dposv  # pyright: ignore[reportAttributeAccessIssue]  # compiled

from lmbm_torch.checks import check_shape
from lmbm_torch.kernels.threads import share, single_threaded
from lmbm_torch.solvers import interior_point
from lmbm_torch.solvers.interior_point import MatrixRows, Solve, factorised
from lmbm_torch.solvers.machines import dual_coordinate
from lmbm_torch.solvers.machines.dual_coordinate import SharedState, certified
from lmbm_torch.solvers.machines.dual_coordinate import init as init
from lmbm_torch.solvers.machines.problem import SharedProblem, SharedWeights, dense
from lmbm_torch.solvers.networks.problems import Features


class _Block(NamedTuple):
    """The part of a factorisation that belongs to one label.

    Args:
        seen: the shared weights of the label's cliques.
        solve: solver for the block of the label's own weights.
        solved: the block's solution for ``mixed``.
        mixed: the entries between own and shared weights, (features + 1, seen).
        own: the label's summand of the Schur complement, (seen, seen).
    """

    seen: np.ndarray
    solve: Solve
    solved: np.ndarray
    mixed: np.ndarray
    own: np.ndarray


@dataclass(frozen=True, eq=False)
class MachineRows:
    """The matrix R of the interior-point method: a row for each margin with a loss, a column for each weight.

    Labels share only the weights of cliques, so the system of a step is solved label by label, and for the
    shared weights by the Schur complement. Columns are divided by the square root of their weight's penalty,
    so that all penalties become 1.

    Args:
        problem: the problem of the machine.
        inputs: features and constant, (instances, features + 1), in float64.
        counted: (labels, instances), True for margins with a loss; each True entry is a row of R, in order.
    """

    problem: SharedProblem
    inputs: MatrixRows
    counted: np.ndarray

    @cached_property
    def _unit(self) -> np.ndarray:
        return np.sqrt(self.problem.penalty)

    def times(self, weights: np.ndarray) -> np.ndarray:
        """Return the margins at a vector of weights, (rows,)."""
        features, cliques = self._parts(weights)
        return self.problem.margins(SharedWeights(features, cliques / self._unit)).T[self.counted]

    def combine(self, duals: np.ndarray) -> np.ndarray:
        """Return the weights of duals (rows,) as a vector."""
        features, cliques = self.problem.weights(self._matrix(duals))
        return np.concatenate([features.ravel(), cliques * self._unit])

    def factorise(self, scale: np.ndarray) -> Solve:
        """Factorise label by label, see :class:`~lmbm_torch.solvers.interior_point.Rows`."""
        weights, found = self._matrix(scale), {}

        def add(label: int) -> None:
            columns, seen = self.problem.kept_context(label)
            shared = columns[:, 1:] / self._unit[seen]
            weighed = weights[label, :, None] * shared
            mixed = self.inputs.combine(weighed)
            solve = self.inputs.factorise(weights[label])
            solved = solve(mixed)
            found[label] = _Block(seen, solve, solved, mixed, shared.T @ weighed - mixed.T @ solved)

        share(range(self.problem.num_labels), add)
        # Add in the order of the labels, not in the order in which threads end: round-off depends on it.
        blocks = [found[label] for label in range(self.problem.num_labels)]
        schur = np.eye(len(self._unit))
        for block in blocks:
            schur[np.ix_(block.seen, block.seen)] += block.own
        # If there are no shared weights, the system is empty; LAPACK refuses empty systems.
        solve_shared = factorised(schur) if schur.size else np.copy

        def solve_all(right: np.ndarray) -> np.ndarray:
            features, cliques = self._parts(right)
            alone = [block.solve(column) for block, column in zip(blocks, features.T, strict=True)]
            pull = cliques.copy()
            for block, part in zip(blocks, alone, strict=True):
                pull[block.seen] -= block.mixed.T @ part
            shared = solve_shared(pull)
            own = [
                part - block.solved @ shared[block.seen] for block, part in zip(blocks, alone, strict=True)
            ]
            return np.concatenate([np.column_stack(own).ravel(), shared])

        return solve_all

    def _matrix(self, values: np.ndarray) -> np.ndarray:
        """Arrange values of the rows as a matrix (labels, instances), with 0 for margins without a loss."""
        matrix = np.zeros(self.counted.shape)
        matrix[self.counted] = values
        return matrix

    def _parts(self, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Split a vector into feature weights, (features + 1, labels), and clique weights."""
        split = self.problem.num_columns * self.problem.num_labels
        return weights[:split].reshape(self.problem.num_columns, -1), weights[split:]


# First σ, times the mean curvature of the duals. A larger first σ needs more Newton steps.
FIRST_STEP = 30.0
# Growth factor of σ from pass to pass. A factor of 10 needs fewer passes, but twice as many Newton steps.
GROWTH = 3.0
LARGEST_STEP = 1e7
MAX_NEWTON_STEPS = 100
# A pass ends once the weights differ from the duals' weights by at most this share of the duals' change.
INNER_TOLERANCE = 1e-3
LINE_TOLERANCE = 1e-2
MAX_LINE_STEPS = 30
# Least length of a Newton step: shorter steps are round-off, so the pass ends.
SHORTEST_LENGTH = 1e-8
# If a pass gains less than this share of the dual value, coordinate descent continues.
STALLED = 1e-9
# Number of passes that nearly always suffices; then the interior-point method takes over.
PATIENCE = 12


def update(problem: SharedProblem, state: SharedState, *, tol: float = 1e-3) -> SharedState:
    """Make one proximal step; before the first step, make some sweeps of coordinate descent.

    Args:
        tol: the relative gap for the interior-point method, which runs if many steps were not enough.

    Returns:
        The new state: the dual value is not lower or, after the interior-point method, the gap is smaller.
        If no method makes progress, the given state is returned.

    Raises:
        ValueError: the state does not fit the problem.
    """
    check_shape("state.dual_coef", state.dual_coef, *problem.spins.shape)
    if state.num_iters >= PATIENCE:
        return _finished(problem, state, tol)
    can_sweep = problem.upper.ndim == 1
    start = dual_coordinate.update(problem, state) if can_sweep and state.num_iters == 0 else state
    rows = _extended(problem)
    growth = min(FIRST_STEP * GROWTH ** min(state.num_iters, 100), LARGEST_STEP)
    # If all rows are zero, there is no curvature, and any σ works.
    sigma = growth / (float(problem.curvature().mean()) or 1.0)
    new, is_settled = _maximise(problem, rows, start, sigma)
    # If the Newton steps did not converge, the new duals may be worse than the old duals; take the best point
    # on the line between both.
    after = certified(problem, _between(problem, start, new), state.num_iters)
    if not is_settled:
        return _finished(problem, replace(after, num_iters=state.num_iters + 1), tol)
    if can_sweep and after.dual - state.dual <= STALLED * abs(state.dual):
        return dual_coordinate.update(problem, after)
    return replace(after, num_iters=state.num_iters + 1)


def limits(state: SharedState, tol: float, left: int, watched: bool) -> dict[str, Any]:
    """Return the argument ``tol`` for the next ``update``."""
    return {"tol": tol}


def _finished(problem: SharedProblem, state: SharedState, tol: float) -> SharedState:
    """Run the interior-point method; return its state, or the given state if the given gap is not larger."""
    upper = np.broadcast_to(problem.upper, problem.spins.shape)
    counted = upper > 0
    rows = MachineRows(problem, interior_point.MatrixRows(_extended(problem)), counted)
    duals = np.zeros(counted.shape)
    with single_threaded(), np.errstate(over="ignore", invalid="ignore"):
        duals[counted] = interior_point.ascend(rows, upper[counted], problem.margin, tol)
        found = certified(problem, duals, state.num_iters + 1)
    return found if found.gap < state.gap else state


def _extended(problem: SharedProblem) -> Features:
    """Return features and constant, (instances, features + 1), in float64."""
    constant = np.full((problem.num_instances, 1), problem.constant)
    if isinstance(problem.features, sparse.csr_array):
        return sparse.csr_array(sparse.hstack([problem.features, constant], "csr", dtype=np.float64))
    return np.hstack([problem.features, constant], dtype=np.float64)


def _maximise(
    problem: SharedProblem, rows: Features, state: SharedState, sigma: float
) -> tuple[np.ndarray, bool]:
    """Run a proximal step; return the duals, and whether the Newton steps converged."""
    old, weights = state.dual_coef, state.weights
    margins = problem.margins(weights).T
    duals = old
    for _ in range(MAX_NEWTON_STEPS):
        wished = old + sigma * (problem.margin - margins)
        duals = np.clip(wished, 0.0, problem.upper)
        residual = _combine(weights, problem.weights(duals), -1.0)
        if problem.square(residual) <= 0.5 * INNER_TOLERANCE * np.square(duals - old).sum() / sigma:
            return duals, True
        free = (wished > 0) & (wished < problem.upper)
        direction = _newton_direction(problem, rows, residual, free, sigma)
        change = problem.margins(direction).T
        length = _line_search(problem, weights, direction, wished, sigma * change, change)
        if length < SHORTEST_LENGTH:
            return duals, True
        weights = _combine(weights, direction, length)
        margins = margins + length * change
    return duals, False


class _Face(NamedTuple):
    """A label's free duals, with the solution of the regularised system on the face.

    Args:
        members: the instances with free duals, whose rows are R, (free duals, features + 1).
        seen: indices of the shared weights of the label's cliques.
        solved: (I/σ + R Rᵀ)⁻¹ (S, residual), with the inputs S (free duals, weights seen) of the shared
            weights.
        products: Sᵀ solved.
    """

    label: int
    members: np.ndarray
    seen: np.ndarray
    solved: np.ndarray
    products: np.ndarray

    @classmethod
    def of(
        cls,
        label: int,
        problem: SharedProblem,
        rows: Features,
        members: np.ndarray,
        weights: SharedWeights,
        sigma: float,
    ) -> _Face:
        columns, seen = problem.kept_context(label)
        rows, shared = rows[members], columns[members, 1:]
        right = rows @ weights.features[:, label] + shared @ weights.cliques[seen]
        solved = _solve(rows, np.column_stack([shared, right]), sigma)
        return cls(label, members, seen, solved, shared.T @ solved)


def _solve(rows: Features, right: np.ndarray, sigma: float) -> np.ndarray:
    """Compute (I/σ + R Rᵀ)⁻¹ right, where R are the ``rows``."""
    count, width = rows.shape  # pyright: ignore[reportGeneralTypeIssues]
    if count < width:
        gram = dense(rows @ rows.T)
        gram.flat[:: count + 1] += 1 / sigma
        return _solve_positive(gram, right)
    # There are at most as many features as free duals: solve the smaller system with I + σ RᵀR instead.
    gram = sigma * dense(rows.T @ rows)
    gram.flat[:: width + 1] += 1
    inner = _solve_positive(gram, rows.T @ right)
    return sigma * (right - sigma * (rows @ inner))


def _solve_positive(matrix: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Compute matrix⁻¹ right for a positive definite matrix; the matrix is overwritten."""
    # Call LAPACK directly: for a small system, SciPy's wrapper takes as long as the solution.
    _, solution, failed = dposv(matrix.T, right, lower=1, overwrite_a=1)
    if failed:
        raise np.linalg.LinAlgError(
            f"matrix: expected a positive definite matrix, got one whose leading minor {failed} is not"
        )
    return solution


def _newton_direction(
    problem: SharedProblem, rows: Features, residual: SharedWeights, free: np.ndarray, sigma: float
) -> SharedWeights:
    """Compute −(H + σ Σ_free f fᵀ)⁻¹ H residual, with H the diagonal of the penalties.

    By the matrix inversion lemma, each system has only the free duals of one label, or the shared weights.
    """
    downhill = SharedWeights(-residual.features, -residual.cliques)
    faces: dict[int, _Face] = {}

    def add(label: int) -> None:
        faces[label] = _Face.of(label, problem, rows, np.flatnonzero(free[label]), downhill, sigma)

    labels = np.flatnonzero(free.any(1)).tolist()
    with single_threaded():
        share(labels, add)
    features, cliques = downhill
    schur = np.diag(problem.penalty)
    pull = np.zeros(len(cliques))
    # Add in the order of the labels, not in the order in which threads end: round-off depends on the order.
    for face in map(faces.__getitem__, labels):
        schur[np.ix_(face.seen, face.seen)] += face.products[:, :-1]
        pull[face.seen] += face.products[:, -1]
    push = np.linalg.solve(schur, pull)
    for face in faces.values():
        steps = face.solved[:, -1] - face.solved[:, :-1] @ push[face.seen]
        # Select the rows again: kept for all faces, they could need many times the memory of the features.
        features[:, face.label] -= rows[face.members].T @ steps
    # Because schur · push = pull, the steps change the shared weights by exactly ``push``.
    return SharedWeights(features, cliques - push)


def _line_search(
    problem: SharedProblem,
    weights: SharedWeights,
    direction: SharedWeights,
    wished: np.ndarray,
    fall: np.ndarray,
    change: np.ndarray,
) -> float:
    """Return the step length at which the slope, an increasing piecewise linear function, is near zero."""
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
    """Return the best duals on the line from the state's duals to ``new``."""
    change = _combine(problem.weights(new), state.weights, -1.0)
    gain = problem.margin * float((new - state.dual_coef).sum()) - _inner(problem, state.weights, change)
    square = _inner(problem, change, change)
    # If the new duals hardly change the weights, round-off can make the gain negative: keep the old duals.
    share = 0.0 if gain <= 0 else min(gain / square, 1.0) if square > 0 else 1.0
    return (1 - share) * state.dual_coef + share * new


def _combine(weights: SharedWeights, other: SharedWeights, factor: float) -> SharedWeights:
    return SharedWeights(weights.features + factor * other.features, weights.cliques + factor * other.cliques)


def _inner(problem: SharedProblem, weights: SharedWeights, other: SharedWeights) -> float:
    """Return the inner product Σ_j η_j w_j w'_j of two weights."""
    cliques = problem.penalty @ (weights.cliques * other.cliques)
    return float((weights.features * other.features).sum() + cliques)
