"""Expectation maximisation for chains with hidden labels, which ends at a local optimum of the likelihood."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from lmbm_torch.energies import ChainEnergy
from lmbm_torch.inference.trees import chain_dp
from lmbm_torch.solvers.base import SolverState

Maximise = Callable[[Tensor, Tensor], None]
"""Function of the expected labels: P(y_t = s), (batch, length, states), and Σ P(y_t = r, y_{t+1} = s)."""


@dataclass(frozen=True)
class ExpectationProblem:
    """A model of chains with hidden labels; the caller keeps the model and its parameters.

    Args:
        energy: function that returns the chains' energy, whose score of labels y is log P(x, y) at the
            current parameters; all chains share the transitions.
        maximise: function that sets the parameters to the most probable ones, given expected labels.
        log_prior: function that returns the log prior of the current parameters.
    """

    energy: Callable[[], ChainEnergy]
    maximise: Maximise
    log_prior: Callable[[], Tensor]


@dataclass(frozen=True)
class ExpectationState(SolverState):
    """The state of expectation maximisation after some steps.

    Args:
        objective: log-likelihood plus log prior before the last step; −∞ before the first step.
        gain: the increase of the objective in the previous step.
        num_iters: the number of steps made so far.
    """

    objective: float
    gain: float
    num_iters: int

    @property
    def gap(self) -> float:
        """Return the gain relative to the objective; infinite before the second step."""
        value = max(abs(self.objective), np.finfo(np.float64).tiny)
        return self.gain / value if np.isfinite(self.gain) else float("inf")


def init(problem: ExpectationProblem, *, generator: torch.Generator | None = None) -> ExpectationState:
    """Fit the parameters to random labels: states with identical parameters would stay identical.

    Args:
        problem: the problem; of the chains, only the shapes are used.
        generator: source of randomness, on the chains' device; by default torch's own.
    """
    chains = problem.energy()
    drawn = torch.empty_like(chains.unary).exponential_(generator=generator)
    nodes = drawn / drawn.sum(-1, keepdim=True) * chains.inside[..., None]
    problem.maximise(nodes, torch.einsum("btr,bts->rs", nodes[:, :-1], nodes[:, 1:]))
    return ExpectationState(objective=-float("inf"), gain=float("inf"), num_iters=0)


def update(problem: ExpectationProblem, state: ExpectationState) -> ExpectationState:
    """Make one step: compute expected labels at the current parameters, then the most probable parameters.

    Raises:
        ValueError: chains have different transitions.
    """
    chains = problem.energy()
    if chains.transition.ndim != 2:
        raise ValueError("energy: expected transitions that all chains share, got transitions for each chain")
    unary, transition = chains.unary.detach().requires_grad_(), chains.transition.detach().requires_grad_()
    # Compute expectations as the gradient of log Z, which needs no memory for the marginals of every step.
    with torch.enable_grad():
        log_likelihood = chain_dp.log_partition(replace(chains, unary=unary, transition=transition)).sum()
        nodes, steps = torch.autograd.grad(
            log_likelihood, (unary, transition), allow_unused=True, materialize_grads=True
        )
    objective = float(log_likelihood.detach() + problem.log_prior())
    problem.maximise(nodes, steps)
    return ExpectationState(objective, objective - state.objective, state.num_iters + 1)
