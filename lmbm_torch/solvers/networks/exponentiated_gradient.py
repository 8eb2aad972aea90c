"""Exponentiated gradient for label problems, to a certified duality gap.

Collins, Globerson, Koo, Carreras and Bartlett, "Exponentiated gradient algorithms for conditional random
fields and max-margin Markov networks", JMLR 9, 2008, on lmbm_and_lmsbn_2010, Equation 6: a label's dual α_l
and what is left of its box, C_l − α_l, are a distribution of mass C_l over two points, and a step multiplies
the odds between them by exp(η g_l), g_l = γ − s_l z_l being the dual's gradient. The rate η is the inverse
curvature along the log-odds, halved until the dual climbs by a fair share of what its gradient promises. No
dual ever reaches a bound, but comes within 1e-13 of its box.
"""

from __future__ import annotations

from typing import Unpack

import numpy as np

from lmbm_torch.kernels.installed import kernels
from lmbm_torch.solvers.networks import states
from lmbm_torch.solvers.networks.problems import LabelProblems
from lmbm_torch.solvers.networks.states import NetworkState, UpdateSettings, init, limits, next_stage

__all__ = ["init", "limits", "next_stage", "update"]

SWEEPS_PER_ROUND = 5


def update(problems: LabelProblems, state: NetworkState, **settings: Unpack[UpdateSettings]) -> NetworkState:
    """Up to ``num_iters`` further rounds, of a few sweeps, for labels whose relative gap is above ``tol``.

    Args:
        settings: see :class:`~lmbm_torch.solvers.networks.states.UpdateSettings`.

    Returns:
        The state after them; the same however many updates the rounds are made in.

    Raises:
        ValueError: a state of other problems, positions that are not there.
    """
    labels, tol, num_iters, seed = states.work(problems, state, **settings)
    backend = kernels("dual.network_gradient", "exponentiated gradient")
    for _ in range(num_iters):
        if not len(labels):
            break
        weights, duals = state.weights.copy(), state.dual_coef.copy()
        drawn = int(np.random.SeedSequence((seed, state.num_iters)).generate_state(1)[0])
        for boxed, part in problems.by_box(labels):
            backend.gradient_sweeps(boxed, part, weights, duals, SWEEPS_PER_ROUND, drawn)
        state = states.certified(problems, duals, state.num_iters + 1, state.stage)
        labels = labels[states.unsolved(state, labels, tol)]
    return state
