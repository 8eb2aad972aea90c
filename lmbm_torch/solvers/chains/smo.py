"""Sequential minimal optimisation of max-margin Markov networks in the factored dual, to a certified gap.

Source: Taskar, Guestrin and Koller, "Max-margin Markov networks", NIPS 2003, section 4. A step moves
probability from one labelling of a chain to another. Only marginals along the two labellings change, and
marginals stay consistent. The labelling of largest loss + score gains; the labelling of least loss + score
among the labellings with marginals above zero loses, so no joint distribution is needed. Dynamic programming
finds both labellings, the step has a closed form, and no labelling is stored.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import sparse

from lmbm_torch.checks import check_count, check_shape
from lmbm_torch.kernels.installed import kernels
from lmbm_torch.solvers.chains.kernel_problem import PASSES_AT_ONCE, ChainKernelProblem, ChainState
from lmbm_torch.solvers.chains.kernel_problem import limits as limits

STEPS_PER_VISIT = 10


@dataclass(frozen=True, eq=False)
class FactoredState(ChainState):
    """A solver's state with the node and edge marginals, which are the dual variables.

    Args:
        nodes: (positions, states), P(y_t).
        pairs: (steps, states · states), P(y_t, y_{t+1}) in rows, chain after chain; few entries are above
            zero, since each step of the solver changes only two labellings.
    """

    nodes: np.ndarray
    pairs: sparse.csr_array

    @property
    def edges(self) -> np.ndarray:
        """Return the edge marginals, (steps, states, states), as a new array."""
        return self.pairs.toarray().reshape(-1, *self.transition.shape)


def init(problem: ChainKernelProblem) -> FactoredState:
    """Return the state at zero weights: the true labels have probability 1."""
    steps, states = problem.step_starts, problem.num_states
    truth = problem.labels[steps] * states + problem.labels[steps + 1]
    rows = np.arange(len(steps) + 1)
    pairs = sparse.csr_array((np.ones(len(steps)), truth, rows), (len(steps), states**2))
    return certified(problem, problem.truth, pairs, 0)


def update(
    problem: ChainKernelProblem, state: FactoredState, *, num_iters: int = PASSES_AT_ONCE, seed: int = 0
) -> FactoredState:
    """Make ``num_iters`` passes over all chains, in orders drawn from the seed.

    Raises:
        ValueError: the state does not fit the problem, or ``num_iters`` is below one.
    """
    check_count("num_iters", num_iters)
    check_shape("state.nodes", state.nodes, len(problem.labels), problem.num_states)
    backend = kernels("dual.chains")
    nodes, edges = state.nodes.copy(), state.edges
    scores, transition = problem.forbidding(state.scores, state.transition.copy())
    scores = np.ascontiguousarray(scores.T)
    for made in range(state.num_iters, state.num_iters + num_iters):
        order = np.random.default_rng((seed, made)).permutation(len(problem.upper))
        backend.smo_sweep(problem, nodes, edges, scores, transition, order, STEPS_PER_VISIT)
    pairs = sparse.csr_array(edges.reshape(-1, problem.num_states**2))
    return certified(problem, nodes, pairs, state.num_iters + num_iters)


def certified(
    problem: ChainKernelProblem, nodes: np.ndarray, pairs: sparse.csr_array, num_iters: int
) -> FactoredState:
    """Return the state at given marginals, with primal and dual values computed anew."""
    upper = problem.upper[problem.chain[problem.step_starts]]
    sums = (upper @ pairs).reshape(problem.num_states, -1)
    return FactoredState(**vars(problem.certify(nodes, sums)), num_iters=num_iters, nodes=nodes, pairs=pairs)
