"""Dual coordinate descent for a Boltzmann machine's hinge problem, to a certified duality gap.

Source: large_margin_boltzmann_machines_2009, section 5 and Algorithm 1, corrected as explained at
:class:`~lmbm_torch.solvers.machines.problem.SharedProblem`. Sweeps need hardly any memory, but many are
needed if labels depend on each other; :mod:`~lmbm_torch.solvers.machines.proximal_newton` needs few steps.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lmbm_torch.checks import check_shape
from lmbm_torch.kernels.installed import kernels
from lmbm_torch.solvers.base import SolverState
from lmbm_torch.solvers.machines.problem import SharedProblem, SharedWeights

# Number of sweeps between two computations of the duality gap, which take as long as about one sweep.
SWEEPS_PER_PASS = 10


@dataclass(frozen=True)
class SharedState(SolverState):
    """Feasible duals, the weights computed from the duals, and the primal and dual values.

    Args:
        dual_coef: the dual variables, (labels, instances).
        weights: weights of features and of cliques.
        primal: the objective at ``weights``.
        dual: the dual value at ``dual_coef``.
        num_iters: passes made so far, see :class:`~lmbm_torch.solvers.base.SolverState`.
    """

    dual_coef: np.ndarray
    weights: SharedWeights
    primal: float
    dual: float
    num_iters: int


def init(problem: SharedProblem, dual_coef: np.ndarray | None = None) -> SharedState:
    """Return the state at ``dual_coef`` (labels, instances), by default at zero.

    Raises:
        ValueError: the duals have a wrong shape, or are outside the box [0, C_l].
    """
    return certified(problem, problem.feasible(dual_coef), 0)


def update(problem: SharedProblem, state: SharedState, *, seed: int = 0) -> SharedState:
    """Make one pass: a few random sweeps over all duals.

    Returns:
        The state after the pass, with weights and both values computed again from the duals.

    Raises:
        ValueError: the state does not fit the problem, or labels have own weights (use proximal_newton).
    """
    if problem.upper.ndim > 1:
        raise ValueError(
            "sample_weight: expected shape (rows,), one weight for each row, got weights for each label"
        )
    check_shape("state.dual_coef", state.dual_coef, *problem.spins.shape)
    backend = kernels("dual.machine")
    weights, couplings = (part.copy() for part in state.weights)
    duals = state.dual_coef.copy()
    # Derive the seed from the number of passes, so that a stored state resumes with the same random numbers.
    seed = int(np.random.SeedSequence((seed, state.num_iters)).generate_state(1)[0])
    backend.sweep(problem, problem.curvature(), weights, couplings, duals, SWEEPS_PER_PASS, seed)
    return certified(problem, duals, state.num_iters + 1)


def certified(problem: SharedProblem, dual_coef: np.ndarray, num_iters: int) -> SharedState:
    """Return the state at given duals, with weights computed anew: running sums would carry round-off."""
    weights = problem.weights(dual_coef)
    primal, dual = problem.primal(weights), problem.dual(dual_coef, weights)
    return SharedState(dual_coef, weights, primal, dual, num_iters)
