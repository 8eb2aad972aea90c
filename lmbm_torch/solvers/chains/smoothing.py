"""Max-margin Markov networks of long chains: L-BFGS on hinges that are smoothed less and less.

The hinge max_y [Δ(y) + score(y)] − score(truth) is below τ log Σ_y exp((Δ(y) + score(y)) / τ) − score(truth),
by no more than τ times an entropy, and the latter is as smooth as a likelihood (Nesterov 2005). Its gradient
is an expectation over labellings, whose marginals are feasible in the dual of the hinges: with the best
labellings, each gradient is a certificate. The temperature τ falls where smoothing is most of the gap.

Frank–Wolfe keeps labellings, of which a long chain needs as many as it has positions that differ, and duals
of all instances: with chains of 500 a hundred passes leave a gap of a fifth. The gradients that are needed
here, some fifty for a gap of a hundredth and twice as many for a thousandth, do not depend on the length;
where weights are more than positions they are some hundreds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from lmbm_torch.checks import check_count, check_positive, check_shape
from lmbm_torch.solvers.base import SolverState, at_most
from lmbm_torch.solvers.chains import lbfgs
from lmbm_torch.solvers.chains.lbfgs import LikelihoodState
from lmbm_torch.solvers.chains.linear import Curvature, LinearChains
from lmbm_torch.solvers.chains.problems import best_labels
from lmbm_torch.solvers.structural.problems import CertifiedWeights, StructuralWeights

__all__ = ["MarginProblem", "SmoothedState", "init", "limits", "update"]

# From one certificate to the next.
ITERATIONS_AT_ONCE = 5
# Many are worth their time: at a low temperature gradients turn within a short step.
CORRECTIONS = 20
# The temperature falls to this share of itself
COOLING = 0.25
# once what L-BFGS has left to gain at it is at most this share of the duality gap.
ENOUGH = 0.3
# In units of the loss of one position; rounding hides what is gained below.
LEAST_TEMPERATURE = 1e-9

limits = at_most(ITERATIONS_AT_ONCE)


@dataclass(frozen=True, eq=False)
class MarginProblem(LinearChains):
    """min_w ½‖w‖² + Σ_x C_x max_y [Hamming(y_x, y) + score(x, y) − score(x, y_x)], that of Frank–Wolfe.

    Args are those of :class:`~.linear.LinearChains`, and

    Args:
        coupling_penalty: η > 0, multiplies the transitions' squares.

    Raises:
        ValueError: see :class:`~.linear.LinearChains`; a penalty not above zero.
    """

    coupling_penalty: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("coupling_penalty", self.coupling_penalty)

    def penalised(self, flat: np.ndarray) -> np.ndarray:
        """The gradient of ½‖w‖²."""
        penalised = flat.copy()
        penalised[-(self.num_states**2) :] *= self.coupling_penalty
        return penalised

    def square_norm(self, flat: np.ndarray) -> float:
        """‖w‖², the transitions counted η times."""
        return float(flat @ self.penalised(flat))

    @cached_property
    def curvature_at_zero(self) -> Curvature:
        """Of the objective smoothed at temperature one, at zero weights."""
        scores = self.augmented(np.zeros((len(self.labels), self.num_states)))
        _, errors, pairs = self.losses(scores, np.zeros((self.num_states, self.num_states)))
        return self.curvature(errors, pairs, self.coupling_penalty)

    def augmented(self, scores: np.ndarray, loss: float = 1.0) -> np.ndarray:
        """Scores (positions, states) larger by ``loss`` for each wrong label."""
        augmented = scores + loss
        augmented[np.arange(len(scores)), self.labels] -= loss
        return augmented


@dataclass(frozen=True, eq=False)
class SmoothedProblem:
    """The smoothed problem divided by τ², as a function of w / τ: what L-BFGS minimises."""

    problem: MarginProblem
    temperature: float

    @property
    def num_states(self) -> int:
        return self.problem.num_states

    @property
    def num_weights(self) -> int:
        return self.problem.num_weights

    def losses(self, flat: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        """Σ_x C_x log-sum / τ, with its gradient by scores and transitions."""
        scores = self.problem.augmented(self.problem.scores(flat), 1 / self.temperature)
        return self.problem.losses(scores, self.problem.transition(flat))

    def value_and_gradient(self, flat: np.ndarray) -> tuple[float, np.ndarray]:
        """At flat weights divided by τ."""
        loss, errors, pairs = self.losses(flat)
        penalised = self.problem.penalised(flat)
        gradient = penalised + self.problem.by_weights(errors, pairs) / self.temperature
        return 0.5 * float(flat @ penalised) + loss / self.temperature, gradient

    def curvature_at(self, flat: np.ndarray) -> Curvature:
        """An estimate of the Hessian, the same wherever and at every temperature.

        At a low one the few positions that are in doubt make it, and they are others with each step.
        """
        return self.problem.curvature_at_zero


@dataclass(frozen=True, eq=False)
class SmoothedState(CertifiedWeights, SolverState):
    """The best weights so far, with their objective, and the largest dual value.

    Args:
        temperature: τ; inner: the iterate of L-BFGS at it.
        num_iters: iterations of L-BFGS made so far.
    """

    weights: StructuralWeights
    primal: float
    dual: float
    num_iters: int
    temperature: float
    inner: LikelihoodState


def init(problem: MarginProblem) -> SmoothedState:
    """The state at zero weights and temperature one, the loss of a position."""
    smoothed = SmoothedProblem(problem, 1.0)
    inner = lbfgs.init(smoothed)
    primal, dual = _certificate(smoothed, inner)
    return SmoothedState(inner.weights, primal, dual, 0, smoothed.temperature, inner)


def update(
    problem: MarginProblem, state: SmoothedState, *, num_iters: int = ITERATIONS_AT_ONCE
) -> SmoothedState:
    """The state after some more iterations at its temperature, which falls where they leave little.

    Returns:
        The state after them; the same state where round-off hides what is left to gain.

    Raises:
        ValueError: a state of another problem, ``num_iters`` below one.
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
        rows = replace(inner, flat=state.temperature * inner.flat)
        weights = rows.weights
    best = max(dual, state.dual)
    temperature = state.temperature
    if ends or _left(smoothed, inner) <= ENOUGH * (primal - best):
        temperature *= COOLING
        inner = _cooled(SmoothedProblem(problem, temperature), inner)
    return SmoothedState(weights, min(primal, state.primal), best, state.num_iters + made, temperature, inner)


def _left(smoothed: SmoothedProblem, inner: LikelihoodState) -> float:
    """By how much at most the smoothed objective is above its optimum: it is strongly convex."""
    gradient = inner.gradient
    return 0.5 * smoothed.temperature**2 * float(gradient @ _unpenalised(smoothed.problem, gradient))


def _unpenalised(problem: MarginProblem, gradient: np.ndarray) -> np.ndarray:
    """The weights of which ½‖w‖² has this gradient."""
    flat = gradient.copy()
    flat[-(problem.num_states**2) :] /= problem.coupling_penalty
    return flat


def _certificate(smoothed: SmoothedProblem, inner: LikelihoodState) -> tuple[float, float]:
    """The objective of the hinges at the weights, and the dual's value at the labellings' marginals."""
    problem, temperature = smoothed.problem, smoothed.temperature
    flat = temperature * inner.flat
    scores = problem.augmented(problem.scores(flat))
    _, hinges = best_labels(scores, problem.transition(flat), problem.lengths, problem.labels)
    primal = 0.5 * problem.square_norm(flat) + float(problem.upper @ np.maximum(hinges, 0.0))
    _, errors, _ = smoothed.losses(inner.flat)
    # Of the true label, −C (1 − its marginal).
    loss = -float(errors[np.arange(len(errors)), problem.labels].sum())
    # Minus the losses' gradient is what the marginals make of the features.
    of_marginals = flat - temperature * _unpenalised(problem, inner.gradient)
    return primal, loss - 0.5 * problem.square_norm(of_marginals)


def _cooled(smoothed: SmoothedProblem, inner: LikelihoodState) -> LikelihoodState:
    """The same weights at a lower temperature, with the corrections that they came by."""
    flat = inner.flat / COOLING
    value, gradient = smoothed.value_and_gradient(flat)
    corrections = tuple((step / COOLING, change / COOLING) for step, change in inner.corrections)
    return replace(
        inner,
        flat=flat,
        objective=value,
        gradient=gradient,
        curvature=smoothed.curvature_at(flat),
        estimated=inner.num_iters,
        corrections=corrections,
    )
