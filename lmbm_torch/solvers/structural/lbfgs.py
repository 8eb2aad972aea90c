"""Smooth losses of structured outputs by L-BFGS, with a certificate of the distance from the optimum.

L-BFGS starts each direction from a multiple of the identity. Features in unlike units, far from zero, or rare
and frequent ones side by side make that a poor guess of the inverse Hessian, to be mended by hundreds of
iterations; here it starts from an estimate of the Hessian, which is made anew now and then.
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
# A step must gain this share of what the slope promises, and leave at most this share of the slope.
SUFFICIENT_DECREASE = 1e-3
SLOPE_LEFT = 0.9
# The Hessian is estimated anew after so many iterations, or a quarter of all those made if these are more:
# it changes most at first.
LEAST_SINCE, SHARE_SINCE = 5, 0.25


@dataclass(frozen=True, eq=False)
class DescentState(FlatState):
    """Weights, with what the next iteration needs to know.

    Args:
        flat: the weights; num_couplings: of its last ones; num_outputs: of the others.
        objective: the value at the weights; gradient: the same place's.
        first_slope: ‖gradient‖ at zero weights.
        num_iters: iterations made so far.
        curvature: an estimate of the Hessian, made after ``estimated`` iterations.
        corrections: the last steps, each with the change of the gradient.
        gained: what the last iteration took off the objective.
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
        """‖gradient‖."""
        return float(np.linalg.norm(self.gradient))

    @property
    def relative_gradient(self) -> float:
        """‖gradient‖ relative to the one at zero weights."""
        return self.slope / max(self.first_slope, TINY)

    @property
    def gap(self) -> float:
        """The relative gradient, or the last iteration's gain relative to the objective, if that is more.

        Where losses are steep a first step may leave a thousandth of the gradient far from the optimum.
        """
        return max(self.relative_gradient, self.gained / max(self.objective, TINY))

    @property
    def excess(self) -> float:
        """A bound on what the value is above the optimum, ½‖gradient‖²: the objective is 1-strongly convex.

        Of a likelihood it is the duality gap too, to the dual's value at the labellings' probabilities. No
        objective is below zero.
        """
        return min(0.5 * self.slope**2, self.objective)

    @property
    def relative_excess(self) -> float:
        """That bound relative to the objective; loose where C is large."""
        return self.excess / max(self.objective, TINY)


class SmoothProblem(Protocol):
    """What L-BFGS minimises: ½‖w‖² and smooth losses, see :class:`~.linear.LinearOutputs`."""

    @property
    def num_outputs(self) -> int: ...

    @property
    def num_couplings(self) -> int: ...

    @property
    def num_weights(self) -> int: ...

    def value_and_gradient(self, flat: np.ndarray) -> tuple[float, np.ndarray]: ...

    def curvature_at(self, flat: np.ndarray) -> Curvature: ...


def init(problem: SmoothProblem) -> DescentState:
    """The state at zero weights."""
    flat = np.zeros(problem.num_weights)
    value, gradient = problem.value_and_gradient(flat)
    slope, curvature = float(np.linalg.norm(gradient)), problem.curvature_at(flat)
    shape = problem.num_couplings, problem.num_outputs
    return DescentState(flat, *shape, value, gradient, slope, 0, curvature)


def update(
    problem: SmoothProblem, state: DescentState, *, num_corrections: int = CORRECTIONS
) -> DescentState:
    """One iteration: a line search along the quasi-Newton direction (Nocedal and Wright, Algorithm 7.5).

    Args:
        num_corrections: that are remembered for the next one, each of twice the weights' memory.

    Returns:
        The state after it; the same state where round-off hides what is left to gain.
    """
    check_shape("state.flat", state.flat, problem.num_weights)
    curvature, estimated = state.curvature, state.estimated
    if state.num_iters - estimated >= max(LEAST_SINCE, SHARE_SINCE * state.num_iters):
        curvature, estimated = problem.curvature_at(state.flat), state.num_iters
    corrections = state.corrections
    found = _line_search(problem, state, _direction(state.gradient, curvature, corrections))
    if found is None and corrections:
        corrections = ()
        found = _line_search(problem, state, _direction(state.gradient, curvature, corrections))
    if found is None:
        return state
    flat, value, gradient = found
    step, change = flat - state.flat, gradient - state.gradient
    if not step @ change > 0:
        # Too short for numbers.
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


def _direction(gradient: np.ndarray, curvature: Curvature, corrections: Corrections) -> np.ndarray:
    """−H gradient, H the inverse Hessian that the corrections make of the estimated one, up to a factor."""
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
    """Point, value and gradient after a step by the strong Wolfe conditions; None where none is found."""
    last = (state.flat, state.objective, state.gradient)

    def evaluated(flat: np.ndarray) -> tuple[np.ndarray, float, np.ndarray]:
        nonlocal last
        if not np.array_equal(flat, last[0]):
            last = (flat, *problem.value_and_gradient(flat))
        return last

    with warnings.catch_warnings():
        # A search that fails returns None.
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
