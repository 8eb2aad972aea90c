"""Likelihoods of chains with an elastic net: ½‖w‖² + λ‖w‖₁, by scipy's bounded L-BFGS."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import minimize

from lmbm_torch.checks import check_count, check_positive
from lmbm_torch.solvers.base import TINY
from lmbm_torch.solvers.chains.linear import LikelihoodProblem
from lmbm_torch.solvers.structural.linear import FlatState

__all__: list[str] = []


@dataclass(frozen=True, eq=False)
class ElasticNetState(FlatState):
    """Weights of the least objective found, and a certificate.

    Args:
        flat: the weights, many of them exactly 0.
        num_couplings, num_outputs: see :class:`~lmbm_torch.solvers.structural.lbfgs.DescentState`.
        objective: ½‖w‖² + λ‖w‖₁ + losses.
        slope: the norm of the least subgradient.
        first_slope: the same at zero weights.
        num_iters: iterations made.
    """

    flat: np.ndarray
    num_couplings: int
    num_outputs: int
    objective: float
    slope: float
    first_slope: float
    num_iters: int

    @property
    def gap(self) -> float:
        """Return the norm of the least subgradient relative to zero weights."""
        return self.relative_gradient

    @property
    def relative_gradient(self) -> float:
        """Return the norm of the least subgradient relative to zero weights."""
        return self.slope / max(self.first_slope, TINY)

    @property
    def relative_excess(self) -> float:
        """Bound the relative excess over the optimum, since the objective is 1-strongly convex."""
        return min(0.5 * self.slope**2 / max(self.objective, TINY), 1.0)


def solve(problem: LikelihoodProblem, penalty: float, *, tol: float, max_iter: int) -> ElasticNetState:
    """Minimise the problem's objective plus ``penalty`` ‖w‖₁.

    With w = u − v, u ≥ 0 and v ≥ 0 the absolute values are linear, and the problem is smooth in a box.

    Args:
        problem: ½‖w‖² and the losses.
        penalty: λ > 0.
        tol: the relative norm of the least subgradient at which the solver ends.
        max_iter: the most iterations.

    Raises:
        ValueError: a penalty that is not a number above 0; no iteration.
    """
    check_positive("penalty", penalty)
    check_count("max_iter", max_iter)
    size = problem.num_weights
    zero = np.zeros(size)
    first = _slope(problem.value_and_gradient(zero)[1], zero, penalty)

    def objective(parts: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = problem.value_and_gradient(parts[:size] - parts[size:])
        return value + penalty * float(parts.sum()), np.concatenate([gradient + penalty, penalty - gradient])

    largest = tol * first / np.sqrt(2 * size)
    options: dict[str, Any] = {"maxiter": max_iter, "maxfun": 4 * max_iter, "ftol": 0.0, "gtol": largest}
    bounds = [(0.0, None)] * (2 * size)
    found = minimize(
        objective, np.zeros(2 * size), jac=True, method="L-BFGS-B", bounds=bounds, options=options
    )
    flat = found.x[:size] - found.x[size:]
    value, gradient = problem.value_and_gradient(flat)
    slope = _slope(gradient, flat, penalty)
    shape = problem.num_couplings, problem.num_outputs
    return ElasticNetState(
        flat, *shape, value + penalty * float(np.abs(flat).sum()), slope, first, int(found.nit)
    )


def _slope(gradient: np.ndarray, flat: np.ndarray, penalty: float) -> float:
    """Return the norm of the least subgradient of the smooth part's gradient and ``penalty`` ‖w‖₁."""
    at_zero = np.sign(gradient) * np.maximum(np.abs(gradient) - penalty, 0.0)
    return float(np.linalg.norm(np.where(flat == 0, at_zero, gradient + penalty * np.sign(flat))))
