"""Exponentiated gradient on the factored dual of max-margin Markov networks of chains.

Source: Collins, Globerson, Koo, Carreras and Bartlett, "Exponentiated gradient algorithms for conditional
random fields and max-margin Markov networks", JMLR 2008. The distribution over a chain's labellings is stored
as log-potentials. A step adds the rate times the dual's gradient, loss + score; the distribution remains a
chain, with marginals by forward–backward. Every chain has its own rate, which is halved if a step would lower
the dual, and increased otherwise. No probability becomes zero, so the last digits of the gap converge slowly:
for a tight gap use :mod:`~lmbm_torch.solvers.chains.smo`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lmbm_torch.checks import check_count, check_shape
from lmbm_torch.kernels.dual.records import Marginals
from lmbm_torch.kernels.installed import kernels
from lmbm_torch.solvers.chains.kernel_problem import PASSES_AT_ONCE, ChainKernelProblem, ChainState
from lmbm_torch.solvers.chains.kernel_problem import limits as limits

# Log-potential of the true state at the start. With all probability on the truth, the steps could not move.
FIRST_ODDS = 4.0


@dataclass(frozen=True, eq=False)
class ExponentiatedState(ChainState):
    """The chains' marginals, and the log-potentials from which the marginals are computed.

    Args:
        log_nodes: (positions, states), unnormalised log-potentials.
        log_pairs: (chains, states, states), unnormalised log-potentials.
        nodes: (positions, states), the marginals P(y_t).
        pairs: (chains, states, states), the sums of edge marginals Σ_t P(y_t, y_{t+1}).
        rates: (chains,), the step size of each chain.
    """

    log_nodes: np.ndarray
    log_pairs: np.ndarray
    nodes: np.ndarray
    pairs: np.ndarray
    rates: np.ndarray


def init(problem: ChainKernelProblem) -> ExponentiatedState:
    """Return the state in which labels are independent, and the true labels have most of the probability.

    Raises:
        ValueError: the problem forbids some steps.
    """
    problem.check_unrestricted()
    states = problem.num_states
    log_nodes = FIRST_ODDS * problem.truth
    nodes = np.exp(log_nodes - np.logaddexp.reduce(log_nodes, 1)[:, None])
    steps = problem.step_starts
    pairs = np.zeros((len(problem.upper), states, states))
    np.add.at(pairs, problem.chain[steps], nodes[steps][:, :, None] * nodes[steps + 1][:, None])
    rates = np.ones(len(problem.upper))
    return _certified(problem, Marginals(log_nodes, np.zeros_like(pairs), nodes, pairs, rates), 0)


def update(
    problem: ChainKernelProblem, state: ExponentiatedState, *, num_iters: int = PASSES_AT_ONCE, seed: int = 0
) -> ExponentiatedState:
    """Make ``num_iters`` passes over all chains, in orders drawn from the seed.

    Raises:
        ValueError: the state does not fit the problem, or ``num_iters`` is below one.
    """
    check_count("num_iters", num_iters)
    check_shape("state.nodes", state.nodes, len(problem.labels), problem.num_states)
    backend = kernels("dual.chains")
    own = Marginals(*(getattr(state, name).copy() for name in Marginals._fields))
    scores = np.ascontiguousarray(state.scores.T)
    transition = state.transition.copy()
    for made in range(state.num_iters, state.num_iters + num_iters):
        order = np.random.default_rng((seed, made)).permutation(len(problem.upper))
        backend.gradient_sweep(problem, own, scores, transition, order)
    return _certified(problem, own, state.num_iters + num_iters)


def _certified(problem: ChainKernelProblem, own: Marginals, num_iters: int) -> ExponentiatedState:
    certificate = problem.certify(own.nodes, np.tensordot(problem.upper, own.pairs, 1))
    return ExponentiatedState(**vars(certificate), num_iters=num_iters, **own._asdict())
