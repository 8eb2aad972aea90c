"""Dual coordinate descent for label problems, after Hsieh et al. 2008, to a certified duality gap.

Convergence is slow if the ranges of columns differ by orders of magnitude. Labels unsolved after many rounds
are solved by :mod:`~lmbm_torch.solvers.interior_point` if the features are small enough to be copied.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Unpack

import numpy as np
import torch
from scipy import sparse

from lmbm_torch.kernels.installed import kernels
from lmbm_torch.kernels.threads import share, single_threaded, stoppable
from lmbm_torch.solvers import interior_point
from lmbm_torch.solvers.networks.problems import LabelProblems, NetworkState, UpdateSettings, certified, work
from lmbm_torch.solvers.networks.problems import init as init
from lmbm_torch.solvers.networks.problems import limits as limits
from lmbm_torch.solvers.networks.problems import next_stage as next_stage

# Number of first sweeps that treat all labels together, while most duals of most labels still change; more
# were not faster on any data set that was tried.
SHARED_SWEEPS = 4
# Least size (labels · feature values) for sweeps over all labels together; below, sweeps over single labels
# are as fast, and less must be compiled.
WORTH_SHARING = 200_000
# Number of rounds that nearly always suffices.
PATIENCE = 20
# Number of rounds, for each column, that take as long as an interior-point factorisation.
ROUNDS_PER_COLUMN = 0.25
# Largest number of feature values that the interior-point method may copy.
MOST_VALUES = 50_000_000


def update(problems: LabelProblems, state: NetworkState, **settings: Unpack[UpdateSettings]) -> NetworkState:
    """Make up to ``num_iters`` rounds for every label with a relative gap above ``tol``.

    A round visits all instances once, then sweeps over the instances whose duals are not yet optimal until
    little is left to gain. An update from zero duals begins with sweeps that treat all labels together.
    After :func:`patience` rounds, an update runs the interior-point method, which counts as one round.

    Args:
        settings: see :class:`~lmbm_torch.solvers.networks.problems.UpdateSettings`.

    Returns:
        The new state; it does not depend on how the rounds are divided into updates.

    Raises:
        ValueError: the state does not fit the problems, or positions are unknown.
    """
    labels, tol, num_iters, seed = work(problems, state, **settings)
    if not len(labels):
        return state
    place = 0 if state.stage is None else [*problems.stages()].index(state.stage)
    left = patience(problems) * (1 + place) - state.num_iters
    if left <= 0:
        return _finished(problems, state, labels, tol)
    # Convert to an integer: for a float, the compiled code would be compiled again.
    num_iters = int(min(num_iters, left))
    backend = kernels("dual.network")
    weights, duals = state.weights.copy(), state.dual_coef.copy()
    # Derive the seed from the number of rounds, so that a stored state resumes with the same random numbers.
    seed = int(np.random.SeedSequence(seed).generate_state(1)[0]) + state.num_iters
    first, last = labels[0], labels[-1] + 1
    # Sweep over all labels together only if they are contiguous: labels in between must stay unchanged.
    is_block = problems.upper.ndim == 1 and np.array_equal(labels, np.arange(first, last))
    if is_block and len(labels) * _stored(problems) >= WORTH_SHARING and not duals[labels].any():
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


def patience(problems: LabelProblems) -> float:
    """Return the number of rounds of a stage before the interior-point method takes over (inf: never)."""
    instances, columns = problems.num_instances, problems.num_columns
    if instances * columns > MOST_VALUES:
        return np.inf
    length = _stored(problems) / instances + problems.context.shape[1]
    return max(PATIENCE, ROUNDS_PER_COLUMN * min(instances, columns) ** 2 // length)


def _stored(problems: LabelProblems) -> int:
    """Return the number of stored feature values."""
    features = problems.features
    return features.nnz if isinstance(features, sparse.csr_array) else features.size


def _finished(problems: LabelProblems, state: NetworkState, labels: np.ndarray, tol: float) -> NetworkState:
    """Run the interior-point method for some labels; keep the results of labels whose gap decreased."""
    sees, duals = problems.sees, state.dual_coef.copy()

    def finish(label: int, stop: np.ndarray) -> None:
        spins, upper = problems.spins[label], problems.upper_of(label)
        counted = (spins != 0) & (upper > 0)
        parts = problems.features[counted], problems.context[counted][:, sees[:, label]]
        rows = sparse.csr_array(sparse.hstack(parts)) if sparse.issparse(parts[0]) else np.hstack(parts)
        signed = interior_point.MatrixRows(rows.astype(np.float64) * spins[counted, None])
        duals[label] = 0
        with np.errstate(over="ignore", invalid="ignore"):
            duals[label, counted] = interior_point.ascend(signed, upper[counted], problems.margin, tol, stop)

    with single_threaded(), np.errstate(over="ignore", invalid="ignore"):
        stoppable(lambda stop: share(labels.tolist(), partial(finish, stop=stop)))
        found = certified(problems, duals, state.num_iters + 1, state.stage)
    nearer = found.primal - found.dual < state.primal - state.dual
    if not nearer.any():
        return state
    return replace(
        found,
        dual_coef=np.where(nearer[:, None], found.dual_coef, state.dual_coef),
        weights=np.where(nearer, found.weights, state.weights),
        primal=np.where(nearer, found.primal, state.primal),
        dual=np.where(nearer, found.dual, state.dual),
    )
