"""Training of linear-chain CRFs with the elastic-net penalty ½‖w‖² + λ‖w‖₁, by orthant-wise L-BFGS."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lmbm_torch.checks import check_count, check_positive
from lmbm_torch.solvers.base import TINY
from lmbm_torch.solvers.chains.linear import LikelihoodProblem
from lmbm_torch.solvers.structural.lbfgs import (
    CORRECTIONS,
    SUFFICIENT_DECREASE,
    Corrections,
    quasi_newton_direction,
)
from lmbm_torch.solvers.structural.linear import FlatState

__all__: list[str] = []

# Number of iterations between two estimates of the Hessian; an estimate costs about two gradients.
ESTIMATED_EVERY = 20
MOST_HALVINGS = 30


@dataclass(frozen=True, eq=False)
class ElasticNetState(FlatState):
    """Weights with the least objective so far, and bounds on the distance from the optimum.

    Args:
        flat: the weights, many of which are exactly 0.
        num_couplings: the number of couplings, which are the last weights.
        num_outputs: the number of states of a label.
        objective: ½‖w‖² + λ‖w‖₁ + losses.
        slope: the norm of the least subgradient.
        first_slope: the norm of the least subgradient at zero weights.
        num_iters: the number of iterations made.
        gained: the decrease of the objective in the last iteration.
    """

    flat: np.ndarray
    num_couplings: int
    num_outputs: int
    objective: float
    slope: float
    first_slope: float
    num_iters: int
    gained: float

    @property
    def gap(self) -> float:
        """Return the larger of the relative norm of the least subgradient and the last relative gain."""
        return max(self.relative_gradient, self.gained / max(self.objective, TINY))

    @property
    def relative_gradient(self) -> float:
        """Return the norm of the least subgradient, relative to the norm at zero weights."""
        return self.slope / max(self.first_slope, TINY)

    @property
    def relative_excess(self) -> float:
        """Return an upper bound of (objective − optimum) / objective, by 1-strong convexity; at most 1."""
        return min(0.5 * self.slope**2 / max(self.objective, TINY), 1.0)


def solve(problem: LikelihoodProblem, penalty: float, *, tol: float, max_iter: int) -> ElasticNetState:
    """Minimise the problem's objective plus ``penalty`` ‖w‖₁ by orthant-wise L-BFGS.

    Source: Andrew and Gao, 2007. A step stays in the orthant to which the negative least subgradient points:
    there the absolute values are linear.

    Args:
        problem: the problem with ½‖w‖² and the losses.
        penalty: λ > 0.
        tol: the solver ends at this relative norm of the least subgradient and relative gain of a step.
        max_iter: the largest number of iterations.

    Raises:
        ValueError: ``penalty`` is not a number above 0; ``max_iter`` is below 1.
    """
    check_positive("penalty", penalty)
    check_count("max_iter", max_iter)
    flat = np.zeros(problem.num_weights)
    objective, gradient = problem.value_and_gradient(flat)
    curvature = problem.curvature_at(flat)
    corrections: Corrections = ()
    subgradient = _least_subgradient(gradient, flat, penalty)
    first, made, gained = float(np.linalg.norm(subgradient)), 0, 0.0
    while made < max_iter and max(np.linalg.norm(subgradient) / max(first, TINY), gained / objective) > tol:
        if made and made % ESTIMATED_EVERY == 0:
            curvature = problem.curvature_at(flat)
        direction = quasi_newton_direction(subgradient, curvature, corrections)
        found = _line_search(problem, penalty, flat, objective, subgradient, direction)
        if found is None and corrections:
            corrections = ()
            continue
        if found is None:
            # No step length lowers the objective: round-off hides the remaining gain, so stop.
            break
        step, change = found[0] - flat, found[2] - gradient
        if step @ change > 0:
            corrections = (*corrections, (step, change))[-CORRECTIONS:]
        gained = objective - found[1]
        flat, objective, gradient = found
        subgradient = _least_subgradient(gradient, flat, penalty)
        made += 1
    shape = problem.num_couplings, problem.num_outputs
    return ElasticNetState(flat, *shape, objective, float(np.linalg.norm(subgradient)), first, made, gained)


def _line_search(
    problem: LikelihoodProblem,
    penalty: float,
    flat: np.ndarray,
    objective: float,
    subgradient: np.ndarray,
    direction: np.ndarray,
) -> tuple[np.ndarray, float, np.ndarray] | None:
    """Halve a step within the orthant until the objective decreases enough.

    Returns:
        The point, the objective and the gradient of the smooth part, or None if no step length succeeds.
    """
    direction = np.where(direction * subgradient < 0, direction, 0.0)
    orthant = np.where(flat == 0, -np.sign(subgradient), np.sign(flat))
    for halved in range(MOST_HALVINGS):
        point = flat + 0.5**halved * direction
        point[point * orthant <= 0] = 0.0
        value, gradient = problem.value_and_gradient(point)
        value += penalty * float(np.abs(point).sum())
        if value <= objective + SUFFICIENT_DECREASE * float(subgradient @ (point - flat)):
            return (point, value, gradient) if value < objective else None
    return None


def _least_subgradient(gradient: np.ndarray, flat: np.ndarray, penalty: float) -> np.ndarray:
    """Return the subgradient of least norm of the objective, a smooth part plus ``penalty`` ‖w‖₁."""
    at_zero = np.sign(gradient) * np.maximum(np.abs(gradient) - penalty, 0.0)
    return np.where(flat == 0, at_zero, gradient + penalty * np.sign(flat))
