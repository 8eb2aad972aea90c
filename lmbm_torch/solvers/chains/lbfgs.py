"""Conditional random fields of chains by L-BFGS, with a certificate of the distance from the optimum."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Protocol

import numpy as np
from scipy.optimize import line_search

from lmbm_torch.backends.installed import kernels
from lmbm_torch.backends.threads import share
from lmbm_torch.checks import check_shape
from lmbm_torch.solvers.base import SolverState
from lmbm_torch.solvers.chains.problems import LabelledChains
from lmbm_torch.solvers.networks.problems import Features, feature_rows
from lmbm_torch.solvers.structural.problems import StructuralWeights

# Chains are shared by threads in so many blocks of about as many positions.
BLOCKS = 8
# Corrections that L-BFGS remembers: each is twice the weights' memory.
CORRECTIONS = 6
Corrections = tuple[tuple[np.ndarray, np.ndarray], ...]
# A step must gain this share of what the slope promises, and leave at most this share of the slope.
SUFFICIENT_DECREASE = 1e-3
SLOPE_LEFT = 0.9


class FlatState(SolverState):
    """A state with weights as :meth:`LikelihoodProblem.value_and_gradient` takes them."""

    flat: np.ndarray
    num_states: int

    @cached_property
    def weights(self) -> StructuralWeights:
        """Of the features, biases included, and of the transitions, flat by rows."""
        rows = self.flat.reshape(-1, self.num_states)
        return StructuralWeights(rows[: -self.num_states].T.copy(), rows[-self.num_states :].ravel().copy())


@dataclass(frozen=True, eq=False)
class LikelihoodState(FlatState):
    """Weights, with what the next iteration needs to know.

    Args:
        flat: weights as :meth:`LikelihoodProblem.value_and_gradient` takes them.
        num_states: S.
        objective: the value at the weights; gradient: the same place's.
        first_slope: ‖gradient‖ at zero weights.
        num_iters: iterations made so far.
        corrections: the last steps, each with the change of the gradient.
    """

    flat: np.ndarray
    num_states: int
    objective: float
    gradient: np.ndarray
    first_slope: float
    num_iters: int
    corrections: Corrections = ()

    @property
    def slope(self) -> float:
        """‖gradient‖."""
        return float(np.linalg.norm(self.gradient))

    @property
    def gap(self) -> float:
        """‖gradient‖ relative to the one at zero weights."""
        return self.slope / max(self.first_slope, np.finfo(np.float64).tiny)

    @property
    def excess(self) -> float:
        """A bound on what the value is above the optimum, ½‖gradient‖²: the objective is 1-strongly convex.

        It is the duality gap too, to the dual's value at the labellings' probabilities of these weights.
        """
        return 0.5 * self.slope**2

    @property
    def relative_excess(self) -> float:
        """That bound relative to the objective; loose where C is large."""
        return self.excess / max(self.objective, np.finfo(np.float64).tiny)


@dataclass(frozen=True, eq=False)
class LikelihoodProblem(LabelledChains):
    """min_w ½‖w‖² − Σ_x C_x log p(y_x | x), p ∝ exp(Σ_t ⟨w_{y_t}, x_t⟩ + b_{y_t} + Σ_t v_{y_t, y_{t+1}}).

    max_margin_markov_networks_survey_2003, Equation 12; biases and transitions are regularised like other
    weights.

    Args:
        features: (positions, features), float32 or float64, dense or CSR, one chain after another.
        labels: (positions,), states.
        start: (chains + 1,), where each chain's positions begin.
        num_states: S.
        C: the losses' weight.
        sample_weight: (chains,), multiplies C.

    Raises:
        ValueError: shapes that do not fit, labels that are no states, values that are not finite, C not above
            zero.
        TypeError: features that are neither float32 nor float64.
    """

    features: Features
    labels: np.ndarray
    start: np.ndarray
    num_states: int
    C: float = 1.0
    sample_weight: np.ndarray | None = None
    upper: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "features", feature_rows(self.features))
        self._check(self.features.shape[0])  # pyright: ignore[reportOptionalSubscript]

    @property
    def num_features(self) -> int:
        return self.features.shape[1]  # pyright: ignore[reportOptionalSubscript]

    @property
    def num_weights(self) -> int:
        return (self.num_features + 1 + self.num_states) * self.num_states

    def value_and_gradient(self, flat: np.ndarray) -> tuple[float, np.ndarray]:
        """The objective and its gradient at flat weights, (features, bias, transitions) by states."""
        transition = flat.reshape(-1, self.num_states)[-self.num_states :]
        loss, errors, pairs = self.losses(self.scores(flat), transition)
        gradient = self.by_weights(errors, pairs)
        gradient += flat
        return 0.5 * float(flat @ flat) + loss, gradient

    def scores(self, flat: np.ndarray) -> np.ndarray:
        """Of all positions without transitions, (positions, states)."""
        # States last: what one entry of a sparse row meets lies together.
        weights = flat.reshape(-1, self.num_states)
        return self.features @ weights[: -self.num_states - 1] + weights[-self.num_states - 1]

    def by_weights(self, errors: np.ndarray, pairs: np.ndarray) -> np.ndarray:
        """The flat gradient by weights that one by scores and transitions makes."""
        return np.concatenate([(self.features.T @ errors).ravel(), errors.sum(0), pairs.ravel()])

    def losses(self, scores: np.ndarray, transition: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        """Σ_x C_x loss, and its gradient by scores and transitions."""
        backend = kernels("dual.chain_likelihood", "chain CRFs")
        # Always as many blocks, so that sums do not depend on how many threads share them.
        ends = np.searchsorted(self.start, np.linspace(0, len(scores), BLOCKS + 1))
        losses, errors = np.zeros(BLOCKS), np.empty_like(scores)
        pairs = np.zeros((BLOCKS, *transition.shape))

        def compute(block: int) -> None:
            first, end = ends[block : block + 2]
            start, upper = self.start[first : end + 1], self.upper[first:end]
            losses[block] = backend.loss_and_gradient(
                scores, transition, start, self.labels, upper, errors, pairs[block]
            )

        share(range(BLOCKS), compute)
        return float(losses.sum()), errors, pairs.sum(0)


class SmoothProblem(Protocol):
    """What L-BFGS minimises: a smooth function of so many weights, of chains with so many states."""

    @property
    def num_states(self) -> int: ...

    @property
    def num_weights(self) -> int: ...

    def value_and_gradient(self, flat: np.ndarray) -> tuple[float, np.ndarray]: ...


def init(problem: SmoothProblem) -> LikelihoodState:
    """The state at zero weights."""
    flat = np.zeros(problem.num_weights)
    value, gradient = problem.value_and_gradient(flat)
    return LikelihoodState(flat, problem.num_states, value, gradient, float(np.linalg.norm(gradient)), 0)


def update(problem: SmoothProblem, state: LikelihoodState) -> LikelihoodState:
    """One iteration: a line search along the quasi-Newton direction (Nocedal and Wright, Algorithm 7.5).

    Returns:
        The state after it; the same state where round-off hides what is left to gain.
    """
    check_shape("state.flat", state.flat, problem.num_weights)
    corrections = state.corrections
    found = _line_search(problem, state, _direction(state.gradient, corrections))
    if found is None and corrections:
        corrections = ()
        found = _line_search(problem, state, _direction(state.gradient, corrections))
    if found is None:
        return state
    flat, value, gradient = found
    corrections = (*corrections, (flat - state.flat, gradient - state.gradient))[-CORRECTIONS:]
    return replace(
        state,
        flat=flat,
        objective=value,
        gradient=gradient,
        num_iters=state.num_iters + 1,
        corrections=corrections,
    )


def _direction(gradient: np.ndarray, corrections: Corrections) -> np.ndarray:
    """−H gradient, H the inverse Hessian that the corrections give; of unit length where there are none."""
    if not corrections:
        return -gradient / np.linalg.norm(gradient)
    direction, shares = -gradient, []
    for step, change in reversed(corrections):
        shares.append(step @ direction / (step @ change))
        direction -= shares[-1] * change
    step, change = corrections[-1]
    direction *= step @ change / (change @ change)
    for (step, change), along in zip(corrections, reversed(shares), strict=True):
        direction += (along - change @ direction / (step @ change)) * step
    return direction


def _line_search(
    problem: SmoothProblem, state: LikelihoodState, direction: np.ndarray
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
