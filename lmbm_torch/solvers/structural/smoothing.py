"""Max-margin training by L-BFGS on hinges with decreasing smoothing.

The hinge max_y [Δ(y) + score(y)] − score(truth) is replaced by the smoothed hinge τ log Σ_y exp((Δ(y) +
score(y)) / τ) − score(truth), which is larger by at most τ times an entropy and as smooth as a likelihood
(Nesterov 2005). The gradient is an expectation over labellings, whose marginals are feasible in the dual of
the hinges: each gradient, with the best labellings, gives a duality gap. The temperature τ is lowered once
most of the gap is due to smoothing.

Frank–Wolfe stores labellings and duals of all instances, and long chains need many labellings: with chains of
500 positions, a hundred passes leave a relative gap of 0.2. Frank–Wolfe is also slow if columns differ in
units. Here about fifty gradients give a gap of 0.001 for any length; some hundreds if there are more weights
than rows.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace

import numpy as np

from lmbm_torch.checks import check_count, check_shape
from lmbm_torch.solvers.base import SolverState, at_most
from lmbm_torch.solvers.structural import lbfgs
from lmbm_torch.solvers.structural.lbfgs import DescentState
from lmbm_torch.solvers.structural.linear import Curvature, LinearOutputs
from lmbm_torch.solvers.structural.problems import CertifiedWeights, StructuralWeights

# Number of iterations of L-BFGS between two computations of the duality gap.
ITERATIONS_AT_ONCE = 5
# Number of remembered steps of L-BFGS: many help, as gradients change quickly at low temperature.
CORRECTIONS = 20
# Factor by which the temperature is lowered.
COOLING = 0.25
# The temperature is lowered once L-BFGS can gain at most this share of the duality gap.
ENOUGH = 0.3
# Training ends below this temperature τ, at which gains are smaller than round-off.
LEAST_TEMPERATURE = 1e-9

limits = at_most(ITERATIONS_AT_ONCE)


class MarginProblem(LinearOutputs):
    """min_w ½‖w‖² + Σ_x C_x max_y [Δ(y_x, y) + score(x, y) − score(x, y_x)], with sums over labellings.

    Attributes:
        coupling_penalty: η > 0, multiplies the squares of the couplings in ‖w‖².
    """

    coupling_penalty: float

    @abstractmethod
    def losses_at(self, flat: np.ndarray, temperature: float) -> tuple[float, np.ndarray, np.ndarray]:
        """Return the smoothed losses Σ_x C_x (log Σ_y exp(Δ / τ + score) − score(truth)), with gradients.

        The gradients are with respect to scores and couplings.
        """

    @abstractmethod
    def hinges(self, flat: np.ndarray) -> float:
        """Return the sum of the hinges Σ_x C_x max_y [Δ + score − score(truth)], or an upper bound."""

    @abstractmethod
    def expected_loss(self, errors: np.ndarray) -> float:
        """Return the expected loss Σ_x C_x E[Δ] under :meth:`losses_at`, from the gradient in scores."""

    @abstractmethod
    def curvature_at(self, flat: np.ndarray, temperature: float) -> Curvature:
        """Estimate the Hessian of ½‖w‖² and the losses of :meth:`losses_at`."""

    def penalised(self, flat: np.ndarray) -> np.ndarray:
        """Return the gradient of the penalty ½‖w‖² at the weights ``flat``."""
        penalised = flat.copy()
        self.couplings(penalised)[:] *= self.coupling_penalty
        return penalised

    def unpenalised(self, gradient: np.ndarray) -> np.ndarray:
        """Return the weights at which the penalty ½‖w‖² has a given gradient."""
        flat = gradient.copy()
        self.couplings(flat)[:] /= self.coupling_penalty
        return flat

    def square_norm(self, flat: np.ndarray) -> float:
        """Return ‖w‖², in which squares of couplings are multiplied by η."""
        return float(flat @ self.penalised(flat))


@dataclass(frozen=True, eq=False)
class SmoothedProblem:
    """The smoothed problem divided by τ², as a function of w / τ, for L-BFGS."""

    problem: MarginProblem
    temperature: float

    @property
    def num_outputs(self) -> int:
        return self.problem.num_outputs

    @property
    def num_couplings(self) -> int:
        return self.problem.num_couplings

    @property
    def num_weights(self) -> int:
        return self.problem.num_weights

    def value_and_gradient(self, flat: np.ndarray) -> tuple[float, np.ndarray]:
        """Return the value and the gradient at ``flat``, the weights divided by τ."""
        loss, errors, couplings = self.problem.losses_at(flat, self.temperature)
        penalised = self.problem.penalised(flat)
        gradient = penalised + self.problem.by_weights(errors, couplings) / self.temperature
        return 0.5 * float(flat @ penalised) + loss / self.temperature, gradient

    def curvature_at(self, flat: np.ndarray) -> Curvature:
        """Estimate the Hessian at ``flat``, the weights divided by τ."""
        return self.problem.curvature_at(flat, self.temperature)


@dataclass(frozen=True, eq=False)
class SmoothedState(CertifiedWeights, SolverState):
    """The best weights so far, with the objective, and the largest dual value.

    Args:
        temperature: the current temperature τ.
        inner: the state of L-BFGS at this temperature.
        num_iters: iterations of L-BFGS made so far.
    """

    weights: StructuralWeights
    primal: float
    dual: float
    num_iters: int
    temperature: float
    inner: DescentState


def init(problem: MarginProblem) -> SmoothedState:
    """Return the state at zero weights and temperature 1."""
    smoothed = SmoothedProblem(problem, 1.0)
    inner = lbfgs.init(smoothed)
    return SmoothedState(inner.weights, *_certificate(smoothed, inner), 0, smoothed.temperature, inner)


def resumed(problem: MarginProblem, state: SmoothedState) -> SmoothedState:
    """Return the state of a problem at the weights of a state of another problem of the same shape."""
    smoothed = SmoothedProblem(problem, state.temperature)
    flat = state.inner.flat
    check_shape("state.inner.flat", flat, problem.num_weights)
    value, gradient = smoothed.value_and_gradient(flat)
    curvature = smoothed.curvature_at(flat)
    inner = replace(lbfgs.init(smoothed), flat=flat, objective=value, gradient=gradient, curvature=curvature)
    weights = replace(inner, flat=state.temperature * flat).weights
    return SmoothedState(weights, *_certificate(smoothed, inner), 0, state.temperature, inner)


def update(
    problem: MarginProblem, state: SmoothedState, *, num_iters: int = ITERATIONS_AT_ONCE
) -> SmoothedState:
    """Make some iterations at the state's temperature; lower the temperature if little gain is left.

    Returns:
        The new state, or the given state if round-off hides the remaining gain.

    Raises:
        ValueError: the state does not fit the problem, or ``num_iters`` is below one.
    """
    check_count("num_iters", num_iters)
    check_shape("state.inner.flat", state.inner.flat, problem.num_weights)
    smoothed, inner = SmoothedProblem(problem, state.temperature), state.inner
    made, ends = 0, False
    while made < num_iters and not ends:
        before, inner = inner, lbfgs.update(smoothed, inner, num_corrections=CORRECTIONS)
        ends = inner is before
        made += 1
    if ends and state.temperature < LEAST_TEMPERATURE:
        return state
    primal, dual = _certificate(smoothed, inner)
    weights = state.weights
    if primal < state.primal:
        weights = replace(inner, flat=state.temperature * inner.flat).weights
    best = max(dual, state.dual)
    temperature = state.temperature
    if ends or _left(smoothed, inner) <= ENOUGH * (primal - best):
        temperature *= COOLING
        inner = _cooled(SmoothedProblem(problem, temperature), inner)
    return SmoothedState(weights, min(primal, state.primal), best, state.num_iters + made, temperature, inner)


def _left(smoothed: SmoothedProblem, inner: DescentState) -> float:
    """Return an upper bound of smoothed objective − optimum, by strong convexity."""
    gradient = inner.gradient
    return 0.5 * smoothed.temperature**2 * float(gradient @ smoothed.problem.unpenalised(gradient))


def _certificate(smoothed: SmoothedProblem, inner: DescentState) -> tuple[float, float]:
    """Return the primal objective (without smoothing) at the weights, and the dual value of the marginals."""
    problem, temperature = smoothed.problem, smoothed.temperature
    flat = temperature * inner.flat
    primal = 0.5 * problem.square_norm(flat) + problem.hinges(flat)
    _, errors, _ = problem.losses_at(inner.flat, temperature)
    # Compute the weights of the dual solution: minus the gradient of the losses, without the penalty.
    of_marginals = flat - temperature * problem.unpenalised(inner.gradient)
    return primal, max(problem.expected_loss(errors) - 0.5 * problem.square_norm(of_marginals), 0.0)


def _cooled(smoothed: SmoothedProblem, inner: DescentState) -> DescentState:
    """Convert the state of L-BFGS, corrections included, to a temperature lower by ``COOLING``."""
    flat = inner.flat / COOLING
    value, gradient = smoothed.value_and_gradient(flat)
    corrections = tuple((step / COOLING, change / COOLING) for step, change in inner.corrections)
    return replace(inner, flat=flat, objective=value, gradient=gradient, corrections=corrections)
