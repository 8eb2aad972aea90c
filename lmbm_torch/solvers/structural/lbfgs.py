"""L-BFGS for smooth losses of structured outputs, with an upper bound of the distance from the optimum.

Plain L-BFGS starts each direction from a multiple of the identity. If features differ in units or frequencies
or are far from zero, the identity is a poor estimate of the inverse Hessian, and hundreds of iterations are
needed to correct the estimate. Here each direction starts from an estimate of the Hessian, renewed at times.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from scipy.optimize import line_search

from lmbm_torch.checks import check_shape
from lmbm_torch.solvers.base import TINY
from lmbm_torch.solvers.structural.linear import Curvature, FlatState

CORRECTIONS = 6
Corrections = tuple[tuple[np.ndarray, np.ndarray], ...]
# First Wolfe condition: a step decreases the objective by at least this share of what the slope predicts.
SUFFICIENT_DECREASE = 1e-3
# Second Wolfe condition: a step leaves at most this share of the slope.
SLOPE_LEFT = 0.9
# The Hessian is estimated again after LEAST_SINCE iterations, or SHARE_SINCE times the iterations so far,
# whichever is more: the Hessian changes most at first.
LEAST_SINCE, SHARE_SINCE = 5, 0.25


@dataclass(frozen=True, eq=False)
class DescentState(FlatState):
    """Weights, and the information for the next iteration.

    Args:
        flat: the weights.
        num_couplings: the number of couplings, which are the last weights.
        num_outputs: the number of outputs, to which all other weights belong.
        objective: the value at the weights.
        gradient: the gradient at the weights.
        first_slope: ‖gradient‖ at zero weights.
        num_iters: iterations made so far.
        curvature: an estimate of the Hessian.
        estimated: ``num_iters`` at the time when ``curvature`` was estimated.
        corrections: the last steps, each with the change of the gradient.
        gained: the decrease of the objective in the last iteration.
    """

    flat: np.ndarray
    num_couplings: int
    num_outputs: int
    objective: float
    gradient: np.ndarray
    first_slope: float
    num_iters: int
    curvature: Curvature
    estimated: int = 0
    corrections: Corrections = ()
    gained: float = 0.0

    @property
    def slope(self) -> float:
        """Return the norm of the gradient."""
        return float(np.linalg.norm(self.gradient))

    @property
    def relative_gradient(self) -> float:
        """Return the norm of the gradient, relative to the norm at zero weights."""
        return self.slope / max(self.first_slope, TINY)

    @property
    def gap(self) -> float:
        """Return the larger of the relative gradient and the last iteration's gain relative to the objective.

        The gradient is not enough: for steep losses, a first step may reduce the gradient to a thousandth,
        and still be far from the optimum.
        """
        return max(self.relative_gradient, self.gained / max(self.objective, TINY))

    @property
    def excess(self) -> float:
        """Return an upper bound of objective − optimum: ½‖gradient‖², as the objective is 1-strongly convex.

        For a likelihood, the bound is also the duality gap if the dual variables are the labellings'
        probabilities. The bound is at most the objective, since the optimum is not negative.
        """
        return min(0.5 * self.slope**2, self.objective)

    @property
    def relative_excess(self) -> float:
        """Return the bound :attr:`excess` divided by the objective; for large C, the bound is loose."""
        return self.excess / max(self.objective, TINY)


class SmoothProblem(Protocol):
    """The interface of problems for L-BFGS: ½‖w‖² and smooth losses, see :class:`~.linear.LinearOutputs`."""

    @property
    def num_outputs(self) -> int: ...

    @property
    def num_couplings(self) -> int: ...

    @property
    def num_weights(self) -> int: ...

    def value_and_gradient(self, flat: np.ndarray) -> tuple[float, np.ndarray]: ...

    def curvature_at(self, flat: np.ndarray) -> Curvature: ...


def init(problem: SmoothProblem) -> DescentState:
    """Return the state at zero weights."""
    flat = np.zeros(problem.num_weights)
    value, gradient = problem.value_and_gradient(flat)
    slope, curvature = float(np.linalg.norm(gradient)), problem.curvature_at(flat)
    shape = problem.num_couplings, problem.num_outputs
    return DescentState(flat, *shape, value, gradient, slope, 0, curvature)


def update(
    problem: SmoothProblem, state: DescentState, *, num_corrections: int = CORRECTIONS
) -> DescentState:
    """Run one iteration, a line search along the quasi-Newton direction (Nocedal and Wright, Algorithm 7.5).

    Args:
        num_corrections: the number of remembered steps; each takes twice the memory of the weights.

    Returns:
        The new state, or the given state if the remaining gain is below round-off.
    """
    check_shape("state.flat", state.flat, problem.num_weights)
    curvature, estimated = state.curvature, state.estimated
    if state.num_iters - estimated >= max(LEAST_SINCE, SHARE_SINCE * state.num_iters):
        curvature, estimated = problem.curvature_at(state.flat), state.num_iters
    corrections = state.corrections
    found = _line_search(problem, state, quasi_newton_direction(state.gradient, curvature, corrections))
    if found is None and corrections:
        corrections = ()
        found = _line_search(problem, state, quasi_newton_direction(state.gradient, curvature, corrections))
    if found is None:
        return state
    flat, value, gradient = found
    step, change = flat - state.flat, gradient - state.gradient
    if not step @ change > 0:
        # In float64 the gradient does not grow along so small a step: no progress is possible, so stop.
        return state
    corrections = (*corrections, (step, change))[-num_corrections:]
    return replace(
        state,
        flat=flat,
        objective=value,
        gradient=gradient,
        num_iters=state.num_iters + 1,
        curvature=curvature,
        estimated=estimated,
        corrections=corrections,
        gained=state.objective - value,
    )


def quasi_newton_direction(
    gradient: np.ndarray, curvature: Curvature, corrections: Corrections
) -> np.ndarray:
    """Return −H · gradient, where H estimates the inverse Hessian from ``curvature`` and ``corrections``.

    Args:
        corrections: steps and changes of the gradient, the oldest first; each step has a positive product
            with its change.
    """
    if not corrections:
        return curvature.solve(-gradient)
    direction, shares = -gradient, []
    for step, change in reversed(corrections):
        shares.append(step @ direction / (step @ change))
        direction -= shares[-1] * change
    step, change = corrections[-1]
    direction = curvature.solve(direction)
    direction *= step @ change / (change @ curvature.solve(change))
    for (step, change), along in zip(corrections, reversed(shares), strict=True):
        direction += (along - change @ direction / (step @ change)) * step
    return direction


def _line_search(
    problem: SmoothProblem, state: DescentState, direction: np.ndarray
) -> tuple[np.ndarray, float, np.ndarray] | None:
    """Search by the strong Wolfe conditions; return point, value and gradient, or None after a failure."""
    last = (state.flat, state.objective, state.gradient)

    def evaluated(flat: np.ndarray) -> tuple[np.ndarray, float, np.ndarray]:
        nonlocal last
        if not np.array_equal(flat, last[0]):
            last = (flat, *problem.value_and_gradient(flat))
        return last

    with warnings.catch_warnings():
        # Ignore warnings of failed searches, which return None.
        warnings.filterwarnings("ignore", ".*line search", RuntimeWarning)
        length, *_ = line_search(
            lambda flat: evaluated(flat)[1],
            lambda flat: evaluated(flat)[2],
            state.flat,
            direction,
            state.gradient,
            state.objective,
            c1=SUFFICIENT_DECREASE,
            c2=SLOPE_LEFT,
        )
    return None if length is None else evaluated(state.flat + length * direction)
