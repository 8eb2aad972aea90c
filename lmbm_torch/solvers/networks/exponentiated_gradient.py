"""Exponentiated gradient for label problems, to a certified duality gap.

Collins, Globerson, Koo, Carreras and Bartlett, "Exponentiated gradient algorithms for conditional random
fields and max-margin Markov networks", JMLR 9, 2008, on lmbm_and_lmsbn_2010, Equation 6: a label's dual α_l
and what is left of its box, C_l − α_l, are a distribution of mass C_l over two points, and a step multiplies
the odds between them by exp(η g_l), g_l = γ − s_l z_l being the dual's gradient. The rate η is the inverse
curvature along the log-odds, halved until the dual climbs by a fair share of what its gradient promises. No
dual ever reaches a bound, but comes within 1e-13 of its box.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from lmbm_torch.backends.installed import kernels
from lmbm_torch.solvers.base import Callback, SolverState
from lmbm_torch.solvers.networks import states
from lmbm_torch.solvers.networks.problems import LabelProblems

SWEEPS_PER_ROUND = 5


def init(problems: LabelProblems, dual_coef: np.ndarray | None = None) -> SolverState:
    """The state at ``dual_coef`` (labels, instances), by default at zero.

    Raises:
        ValueError: duals of the wrong shape or outside their box [0, C_l].
    """
    return states.initial(problems, dual_coef)


def update(
    problems: LabelProblems,
    state: SolverState,
    *,
    tol: float = 1e-3,
    rounds: int = 1,
    seed: int = 0,
    positions: Sequence[int] | None = None,
) -> SolverState:
    """Up to ``rounds`` further rounds, of a few sweeps, for labels whose relative gap is above ``tol``.

    Args:
        positions: the labels to work on, by position in the ordering; all by default.

    Returns:
        The state after them; the same however many updates the rounds are made in.

    Raises:
        ValueError: a state of other problems, positions that are not there.
    """
    labels = states.labels_to_solve(problems, state, tol, positions)
    backend = kernels("dual.network_gradient", "exponentiated gradient")
    for _ in range(rounds):
        if not len(labels):
            break
        weights, duals = state.weights.copy(), state.dual_coef.copy()
        drawn = int(np.random.SeedSequence((seed, state.num_passes)).generate_state(1)[0])
        backend.gradient_sweeps(problems, labels, weights, duals, SWEEPS_PER_ROUND, drawn)
        state = states.certified(problems, duals, state.num_passes + 1)
        labels = labels[states.unsolved(state, labels, tol)]
    return state


def run(
    problems: LabelProblems,
    *,
    tol: float = 1e-3,
    max_rounds: int = 1000,
    dual_coef: np.ndarray | None = None,
    seed: int = 0,
    callback: Callback | None = None,
) -> SolverState:
    """Solve every label's problem to a relative duality gap of ``tol``.

    Labels with missing values are learned in stages: what a label lacks is imputed by its own prediction
    before the labels behind it in the ordering see it.

    Args:
        tol: the relative duality gap of each label at which it is done.
        max_rounds: the end, reached or not; ``state.gap`` tells.
        dual_coef: (labels, instances), duals to start from, such as those of a smaller C.
        seed: of the order in which instances are visited.
        callback: called after every few rounds.

    Raises:
        ValueError: ``tol`` not above zero, ``max_rounds`` below one, or duals outside their box.
    """
    return states.run_stages(
        problems,
        partial(update, seed=seed),
        tol=tol,
        max_rounds=max_rounds,
        dual_coef=dual_coef,
        callback=callback,
    )
