"""Dual coordinate descent for label problems, after Hsieh et al. 2008, to a certified duality gap."""

from __future__ import annotations

from dataclasses import replace
from typing import Unpack

import numpy as np
import torch

from lmbm_torch.backends.installed import kernels
from lmbm_torch.solvers.networks import states
from lmbm_torch.solvers.networks.problems import LabelProblems
from lmbm_torch.solvers.networks.states import NetworkState, UpdateSettings, init, limits, next_stage

__all__ = ["init", "limits", "next_stage", "update"]

# Nearly every instance matters to nearly every label until here; more were not faster on any data set tried.
SHARED_SWEEPS = 4


def update(problems: LabelProblems, state: NetworkState, **settings: Unpack[UpdateSettings]) -> NetworkState:
    """Up to ``num_iters`` further rounds for every label whose relative gap is above ``tol``.

    A round looks at all instances once, then sweeps over those that matter to the label until little of their
    violation is left. An update from zero begins with sweeps over all instances, each visited once for all
    labels.

    Args:
        settings: see :class:`~lmbm_torch.solvers.networks.states.UpdateSettings`.

    Returns:
        The state after them; the same however many updates the rounds are made in.

    Raises:
        ValueError: a state of other problems, positions that are not there.
    """
    labels, tol, num_iters, seed = states.work(problems, state, **settings)
    if not len(labels):
        return state
    backend = kernels("dual.network", "dual coordinate descent")
    weights, duals = state.weights.copy(), state.dual_coef.copy()
    # A stored state goes on with the random numbers that it would have had.
    seed = int(np.random.SeedSequence(seed).generate_state(1)[0]) + state.num_iters
    first, last = labels[0], labels[-1] + 1
    # A block has no gaps: labels between those to work on must be left as they are.
    one_box = problems.upper.ndim == 1
    if one_box and not duals[labels].any() and np.array_equal(labels, np.arange(first, last)):
        blocks = min(torch.get_num_threads(), last - first)
        bounds = np.linspace(first, last, blocks + 1).astype(np.int64)
        backend.shared_sweeps(problems, bounds, weights, duals, SHARED_SWEEPS, seed)
    found = [
        backend.solve_labels(boxed, part, weights, duals, tol, num_iters, seed)
        for boxed, part in problems.by_box(labels)
    ]
    values = map(np.concatenate, zip(*found, strict=True))
    primal, dual = state.primal.copy(), state.dual.copy()
    primal[labels], dual[labels], made = values
    num_iters = state.num_iters + int(made.max())
    return replace(state, dual_coef=duals, weights=weights, primal=primal, dual=dual, num_iters=num_iters)
