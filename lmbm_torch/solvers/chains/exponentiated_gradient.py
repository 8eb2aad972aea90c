"""Exponentiated gradient on the factored dual of max-margin Markov networks of chains.

Collins, Globerson, Koo, Carreras and Bartlett, "Exponentiated gradient algorithms for conditional random
fields and max-margin Markov networks", JMLR 2008. The distribution over a chain's labellings is kept as
log-potentials, to which a step adds its rate times the dual's gradient, loss + score: it stays a chain, and
its marginals come by forward–backward. Every chain has a rate of its own, halved where a step would lower the
dual and raised where it did not. Masses never reach zero, so that the last digits of the gap take long: for
these see :mod:`~lmbm_torch.solvers.chains.smo`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from lmbm_torch.backends.dual.plain.chain_gradient import Marginals
from lmbm_torch.backends.installed import kernels
from lmbm_torch.checks import check_count, check_shape
from lmbm_torch.solvers.base import run_to_gap
from lmbm_torch.solvers.chains.kernel_problem import Certificate, ChainKernelProblem

# Log-odds of the truth at the start, where all its mass is the optimum for zero weights but not inside.
FIRST_ODDS = 4.0
PASSES_AT_ONCE = 10


@dataclass(frozen=True, eq=False)
class ExponentiatedState:
    """Where the solver stands.

    Args:
        log_nodes: (positions, states); log_pairs: (chains, states, states): log-potentials, not normalised.
        nodes: (positions, states), P(y_t); pairs: (chains, states, states), Σ_t P(y_t, y_{t+1}).
        rates: (chains,), step sizes.
        certificate: what the marginals amount to.
        num_passes: passes made so far; with the seed it determines the order of the next one.
    """

    log_nodes: np.ndarray
    log_pairs: np.ndarray
    nodes: np.ndarray
    pairs: np.ndarray
    rates: np.ndarray
    certificate: Certificate
    num_passes: int

    @property
    def primal(self) -> float:
        return self.certificate.primal

    @property
    def dual(self) -> float:
        return self.certificate.dual

    @property
    def gap(self) -> float:
        """The duality gap relative to the primal value."""
        return self.certificate.gap


def init(problem: ChainKernelProblem) -> ExponentiatedState:
    """Independent labels, with most of the mass on the truth."""
    states = problem.num_states
    log_nodes = FIRST_ODDS * problem.truth
    nodes = np.exp(log_nodes - np.logaddexp.reduce(log_nodes, 1)[:, None])
    steps = problem.step_starts
    pairs = np.zeros((len(problem.upper), states, states))
    np.add.at(pairs, problem.chain[steps], nodes[steps][:, :, None] * nodes[steps + 1][:, None])
    rates = np.ones(len(problem.upper))
    certificate = problem.certify(nodes, np.tensordot(problem.upper, pairs, 1))
    return ExponentiatedState(log_nodes, np.zeros_like(pairs), nodes, pairs, rates, certificate, 0)


def update(
    problem: ChainKernelProblem, state: ExponentiatedState, *, passes: int = PASSES_AT_ONCE, seed: int = 0
) -> ExponentiatedState:
    """The state after some more passes over all chains, in orders drawn from the seed.

    Raises:
        ValueError: a state of another problem, ``passes`` below one.
    """
    check_count("passes", passes)
    check_shape("state.nodes", state.nodes, len(problem.labels), problem.num_states)
    backend = kernels("dual.chain_gradient", "exponentiated gradient")
    own = Marginals(*(getattr(state, name).copy() for name in Marginals._fields))
    scores = np.ascontiguousarray(state.certificate.scores.T)
    transition = state.certificate.transition.copy()
    for made in range(state.num_passes, state.num_passes + passes):
        order = np.random.default_rng((seed, made)).permutation(len(problem.upper))
        backend.gradient_sweep(problem, own, scores, transition, order)
    certificate = problem.certify(own.nodes, np.tensordot(problem.upper, own.pairs, 1))
    return replace(state, **own._asdict(), certificate=certificate, num_passes=state.num_passes + passes)


def run(
    problem: ChainKernelProblem,
    *,
    tol: float = 1e-3,
    max_passes: int = 1000,
    seed: int = 0,
    callback: Callable[[ExponentiatedState], None] | None = None,
) -> ExponentiatedState:
    """Step until the relative duality gap is ``tol``.

    Args:
        max_passes: the end, reached or not; ``state.gap`` tells.
        seed: of the orders in which chains are visited.
        callback: called after every few passes; may raise to stop.

    Raises:
        ValueError: ``tol`` not above zero, ``max_passes`` below one.
    """

    def step(state: ExponentiatedState) -> ExponentiatedState:
        passes = min(PASSES_AT_ONCE, max_passes - state.num_passes)
        return update(problem, state, passes=passes, seed=seed)

    return run_to_gap(
        partial(init, problem),
        step,
        tol=tol,
        max_passes=max_passes,
        callback=callback,
    )
