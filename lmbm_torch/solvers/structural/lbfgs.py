"""L-BFGS for smooth losses of structured outputs, with a certificate of the distance from the optimum.

Plain L-BFGS starts each direction from a multiple of the identity. This is a poor estimate of the inverse
Hessian if features differ in units or frequencies, or are far from zero, and it takes hundreds of iterations
to correct. Here the start is an estimate of the Hessian, which is computed again from time to time.
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
# Wolfe's conditions: least share of the decrease that the slope predicts, and largest share of the slope
# before the step that is left after the step.
SUFFICIENT_DECREASE = 1e-3
SLOPE_LEFT = 0.9
# Number of iterations between two estimates of the Hessian: at least LEAST_SINCE, and at least the share
# SHARE_SINCE of all iterations so far, because the Hessian changes most at first.
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
        estimated: the number of iterations before ``curvature`` was estimated.
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
        """Return ‖gradient‖."""
        return float(np.linalg.norm(self.gradient))

    @property
    def relative_gradient(self) -> float:
        """Return ‖gradient‖ relative to the norm at zero weights."""
        return self.slope / max(self.first_slope, TINY)

    @property
    def gap(self) -> float:
        """Return the larger of the relative gradient and the last iteration's gain relative to the objective.

        For steep losses, a first step may leave a thousandth of the gradient and still be far from the
        optimum.
        """
        return max(self.relative_gradient, self.gained / max(self.objective, TINY))

    @property
    def excess(self) -> float:
        """Bound the excess of the value over the optimum by ½‖gradient‖²: the objective is 1-strongly convex.

        For a likelihood, the bound is also the duality gap, with the dual value at the labellings'
        probabilities. The bound is at most the objective, since no objective is below zero.
        """
        return min(0.5 * self.slope**2, self.objective)

    @property
    def relative_excess(self) -> float:
        """Return the bound of :attr:`excess` relative to the objective; it is loose for large C."""
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
        The new state; the same state if the remaining gain is below round-off.
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
        # The step is so small that float64 cannot represent it.
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
    """Return −H gradient, where H is, up to a factor, the inverse Hessian from estimate and corrections.

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
        # A failed search returns None.
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
