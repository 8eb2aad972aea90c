"""Sequential minimal optimisation of max-margin Markov networks in the factored dual, to a certified gap.

Taskar, Guestrin and Koller, "Max-margin Markov networks", NIPS 2003, section 4: a step moves mass between two
labellings of a chain, which changes the marginals along them alone and keeps them consistent. The labelling
that gains is the one of largest loss + score; the one that loses is the one of least among those whose
marginals all have mass, so that no joint distribution is needed. Both are found by dynamic programming, the
step has a closed form, and no labelling is ever stored.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from lmbm_torch.backends.installed import kernels
from lmbm_torch.checks import check_count, check_shape
from lmbm_torch.solvers.base import run_to_gap
from lmbm_torch.solvers.chains.kernel_problem import Certificate, ChainKernelProblem

STEPS_PER_VISIT = 10
# Passes between two certificates, each of which costs about as much as ten passes.
PASSES_AT_ONCE = 10


@dataclass(frozen=True, eq=False)
class FactoredState:
    """Where the solver stands.

    Args:
        nodes: (positions, states), P(y_t).
        edges: (steps, states, states), P(y_t, y_{t+1}), one chain's steps after another's.
        certificate: what they amount to.
        num_passes: passes made so far; with the seed it determines the order of the next one.
    """

    nodes: np.ndarray
    edges: np.ndarray
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


def init(problem: ChainKernelProblem) -> FactoredState:
    """The state at zero weights: all mass lies with the truth."""
    steps, truth = problem.step_starts, problem.truth
    return _certified(problem, truth, truth[steps][:, :, None] * truth[steps + 1][:, None], 0)


def update(
    problem: ChainKernelProblem, state: FactoredState, *, passes: int = PASSES_AT_ONCE, seed: int = 0
) -> FactoredState:
    """The state after some more passes over all chains, in orders drawn from the seed.

    Raises:
        ValueError: a state of another problem, ``passes`` below one.
    """
    check_count("passes", passes)
    check_shape("state.nodes", state.nodes, len(problem.labels), problem.num_states)
    backend = kernels("dual.chain_pairs", "SMO of chains")
    nodes, edges = state.nodes.copy(), state.edges.copy()
    scores = np.ascontiguousarray(state.certificate.scores.T)
    transition = state.certificate.transition.copy()
    for made in range(state.num_passes, state.num_passes + passes):
        order = np.random.default_rng((seed, made)).permutation(len(problem.upper))
        backend.smo_sweep(problem, nodes, edges, scores, transition, order, STEPS_PER_VISIT)
    return _certified(problem, nodes, edges, state.num_passes + passes)


def run(
    problem: ChainKernelProblem,
    *,
    tol: float = 1e-3,
    max_passes: int = 1000,
    seed: int = 0,
    callback: Callable[[FactoredState], None] | None = None,
) -> FactoredState:
    """Solve to a relative duality gap of ``tol``.

    Args:
        max_passes: the end, reached or not; ``state.gap`` tells.
        seed: of the orders in which chains are visited.
        callback: called after every few passes; may raise to stop.

    Raises:
        ValueError: ``tol`` not above zero, ``max_passes`` below one.
    """

    def step(state: FactoredState) -> FactoredState:
        passes = min(PASSES_AT_ONCE, max_passes - state.num_passes)
        return update(problem, state, passes=passes, seed=seed)

    return run_to_gap(
        partial(init, problem),
        step,
        tol=tol,
        max_passes=max_passes,
        callback=callback,
    )


def _certified(
    problem: ChainKernelProblem, nodes: np.ndarray, edges: np.ndarray, num_passes: int
) -> FactoredState:
    upper = problem.upper[problem.chain[problem.step_starts]]
    return FactoredState(nodes, edges, problem.certify(nodes, np.tensordot(upper, edges, 1)), num_passes)
