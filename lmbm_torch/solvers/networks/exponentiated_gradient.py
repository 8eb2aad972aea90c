"""Exponentiated gradient for label problems, to a certified duality gap.

Source: Collins, Globerson, Koo, Carreras and Bartlett, "Exponentiated gradient algorithms for conditional
random fields and max-margin Markov networks", JMLR 9, 2008, applied to lmbm_and_lmsbn_2010, Equation 6. A
dual α_l and the rest C_l − α_l are treated as a distribution over two points, with sum C_l. A step multiplies
the odds α_l / (C_l − α_l) by exp(η g_l), where g_l = γ − s_l z_l is the dual's gradient. The rate η is the
inverse curvature along the log-odds, halved until the dual grows by a fair share of what the gradient
predicts. Duals never reach the bounds 0 and C_l, but come as close as 1e-13.
"""

from __future__ import annotations

from typing import Unpack

import numpy as np

from lmbm_torch.kernels.installed import kernels
from lmbm_torch.solvers.networks.problems import (
    LabelProblems,
    NetworkState,
    UpdateSettings,
    certified,
    unsolved,
    work,
)
from lmbm_torch.solvers.networks.problems import init as init
from lmbm_torch.solvers.networks.problems import limits as limits
from lmbm_torch.solvers.networks.problems import next_stage as next_stage

SWEEPS_PER_ROUND = 5


def update(problems: LabelProblems, state: NetworkState, **settings: Unpack[UpdateSettings]) -> NetworkState:
    """Make up to ``num_iters`` rounds of a few sweeps for labels with a relative gap above ``tol``.

    Args:
        settings: see :class:`~lmbm_torch.solvers.networks.problems.UpdateSettings`.

    Returns:
        The new state, which does not depend on how the rounds are divided into updates.

    Raises:
        ValueError: the state does not fit the problems, or positions are unknown.
    """
    labels, tol, num_iters, seed = work(problems, state, **settings)
    backend = kernels("dual.network")
    for _ in range(num_iters):
        if not len(labels):
            break
        weights, duals = state.weights.copy(), state.dual_coef.copy()
        drawn = int(np.random.SeedSequence((seed, state.num_iters)).generate_state(1)[0])
        for boxed, part in problems.by_box(labels):
            backend.gradient_sweeps(boxed, part, weights, duals, SWEEPS_PER_ROUND, drawn)
        state = certified(problems, duals, state.num_iters + 1, state.stage)
        labels = labels[unsolved(state, labels, tol)]
    return state
