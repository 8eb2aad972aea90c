"""Expectation maximisation for chains whose labels are hidden: what is observed never becomes less probable.

The model is the caller's: ``energy`` makes its chains, with log P(x, y) for score, ``maximise`` takes over
the most probable parameters given expected labels, and ``log_prior`` is what these are smoothed by.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lmbm_torch.checks import check_count, check_not_negative
from lmbm_torch.energies import ChainEnergy
from lmbm_torch.inference import chain_dp

Maximise = Callable[[Tensor, Tensor], None]
"""Takes P(y_t = s), (batch, length, states), and Σ P(y_t = r, y_{t+1} = s), (states, states)."""


@dataclass(frozen=True)
class ExpectationState:
    """How far expectation maximisation has come.

    Args:
        objective: log-likelihood plus log-prior before the last step; infinitely low before the first.
        gain: by how much that is above the one before it.
        num_passes: steps made.
    """

    objective: float
    gain: float
    num_passes: int


def init(
    energy: Callable[[], ChainEnergy], maximise: Maximise, *, generator: torch.Generator | None = None
) -> ExpectationState:
    """Take the parameters that random labels ask for: where all states are alike, they would stay so.

    Args:
        energy: makes the chains for the parameters as they are; their shapes are all that counts here.
        maximise: takes over parameters.
        generator: the source of randomness, on the chains' device; by default torch's own.
    """
    chains = energy()
    drawn = torch.empty_like(chains.unary).exponential_(generator=generator)
    nodes = drawn / drawn.sum(-1, keepdim=True) * chains.inside[..., None]
    maximise(nodes, torch.einsum("btr,bts->rs", nodes[:, :-1], nodes[:, 1:]))
    return ExpectationState(objective=-float("inf"), gain=float("inf"), num_passes=0)


def update(
    state: ExpectationState,
    energy: Callable[[], ChainEnergy],
    maximise: Maximise,
    log_prior: Callable[[], Tensor],
) -> ExpectationState:
    """One step: the labels expected of the parameters as they are, then the parameters these ask for.

    Args:
        state: where the steps before have led.
        energy: makes the chains for the parameters as they are; all share their transitions.
        maximise: takes over parameters.
        log_prior: of the parameters as they are.

    Raises:
        ValueError: chains whose transitions differ.
    """
    chains = energy()
    if chains.transition.ndim != 2:
        raise ValueError("energy: expected transitions that all chains share, got some of their own")
    unary, transition = chains.unary.detach().requires_grad_(), chains.transition.detach().requires_grad_()
    # The gradient is the expectations, without the marginals of every step of every chain.
    with torch.enable_grad():
        log_likelihood = chain_dp.log_partition(replace(chains, unary=unary, transition=transition)).sum()
        nodes, steps = torch.autograd.grad(
            log_likelihood, (unary, transition), allow_unused=True, materialize_grads=True
        )
    objective = float(log_likelihood.detach() + log_prior())
    maximise(nodes, steps)
    return ExpectationState(objective, objective - state.objective, state.num_passes + 1)


def run(
    energy: Callable[[], ChainEnergy],
    maximise: Maximise,
    log_prior: Callable[[], Tensor],
    *,
    tol: float = 1e-5,
    max_passes: int = 200,
    generator: torch.Generator | None = None,
    callback: Callable[[ExpectationState], None] | None = None,
) -> ExpectationState:
    """Step from random labels on until the objective gains no more than ``tol`` of its size in a step.

    Args:
        energy: as for :func:`update`, like ``maximise`` and ``log_prior``.
        tol: the least gain, relative to the objective; what is found is a local optimum.
        max_passes: the end, reached or not; ``state.gain`` tells.
        generator: as for :func:`init`.
        callback: called after every step.

    Raises:
        ValueError: a negative ``tol``, ``max_passes`` below one, chains whose transitions differ.
    """
    check_not_negative("tol", tol)
    check_count("max_passes", max_passes)
    state = init(energy, maximise, generator=generator)
    while state.num_passes < max_passes:
        state = update(state, energy, maximise, log_prior)
        if callback is not None:
            callback(state)
        if state.gain <= tol * abs(state.objective):
            break
    return state
