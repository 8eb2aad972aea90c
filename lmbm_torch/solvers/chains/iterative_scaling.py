"""Iterative scaling, the training method of the first paper on conditional random fields.

Source: Lafferty, McCallum and Pereira, "Conditional random fields", ICML 2001, Algorithm S, after Darroch and
Ratcliff (1972); max_margin_markov_networks_survey_2003, section 4.2. A pass multiplies e^w of each feature by

    (observed count / expected count)^(1/S),

where S is the largest total count of features in a chain. No pass lowers the likelihood. Features must be
counts; there is no regularisation. Hundreds of passes are needed where L-BFGS
(:mod:`~lmbm_torch.solvers.structural.lbfgs`) needs tens of iterations.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from lmbm_torch.solvers.chains.linear import LikelihoodProblem
from lmbm_torch.solvers.structural.linear import FlatState


@dataclass(frozen=True, eq=False)
class ScalingState(FlatState):
    """Weights, with observed and expected counts, whose difference measures the distance from the optimum.

    Args:
        flat: the weights; 0 for pairs of feature and state that never occur: the model leaves them out.
        num_couplings: the number of couplings, which are the last weights.
        num_outputs: the number of states.
        loss: −Σ_x C_x log p(y_x | x), the weighted negative log-likelihood of the chains x.
        observed: the counts of the model's features in the labels.
        expected: the expected counts of the model's features.
        num_iters: passes made so far.
    """

    flat: np.ndarray
    num_couplings: int
    num_outputs: int
    loss: float
    observed: np.ndarray
    expected: np.ndarray
    num_iters: int

    @property
    def gap(self) -> float:
        """Return Σ |observed − expected| / Σ observed, which is 0 only at the largest likelihood."""
        return float(np.abs(self.observed - self.expected).sum() / self.observed.sum())


def init(problem: LikelihoodProblem) -> ScalingState:
    """Return the state at zero weights; the penalty ½‖w‖² of the problem is ignored.

    Raises:
        ValueError: a feature is negative.
    """
    features: Any = problem.features
    values = features.data if sparse.issparse(features) else features
    if len(values) and float(np.min(values)) < 0:
        raise ValueError(f"features: expected counts of at least 0, got {float(np.min(values))}")
    flat = np.zeros(problem.num_weights)
    return _state(problem, flat, _observed(problem), 0)


def update(problem: LikelihoodProblem, state: ScalingState) -> ScalingState:
    """Update the weights of all features once, from observed and expected counts in all chains."""
    flat = state.flat.copy()
    occurs = state.observed > 0
    # Replace expected counts that underflow to zero by a tiny number: they are divisors below.
    expected = np.maximum(state.expected[occurs], np.finfo(np.float64).tiny)
    flat[occurs] += np.log(state.observed[occurs] / expected) / _largest_total(problem)
    return _state(problem, flat, state.observed, state.num_iters + 1)


def _state(problem: LikelihoodProblem, flat: np.ndarray, observed: np.ndarray, passes: int) -> ScalingState:
    """Compute the loss and the expected counts at given weights from the problem's value and gradient."""
    value, gradient = problem.value_and_gradient(flat)
    expected = np.where(observed > 0, gradient - flat + observed, 0)
    shape, loss = (problem.num_couplings, problem.num_outputs), value - 0.5 * float(flat @ flat)
    return ScalingState(flat, *shape, loss, observed, expected, passes)


def _observed(problem: LikelihoodProblem) -> np.ndarray:
    """Count each feature together with the true labels, weighted by C_x; return a flat vector."""
    truth, steps = problem.truth, problem.step_starts
    often = problem.upper[problem.chain][:, None] * truth
    pairs = truth[steps].T @ often[steps + 1]
    return np.concatenate([problem.features.T @ often, often.sum(0)[None], pairs]).ravel()


def _largest_total(problem: LikelihoodProblem) -> float:
    """Return the largest sum of feature values of a chain; inputs, biases and transitions enter the sum."""
    features: Any = problem.features
    totals = np.asarray(features.sum(axis=1)).ravel() + 2
    return float(np.add.reduceat(totals, problem.start[:-1]).max() - 1)
