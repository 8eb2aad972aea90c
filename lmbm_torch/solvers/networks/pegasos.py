"""Pegasos for label problems: stochastic subgradient steps of size 1/(λt), with a duality gap.

Shalev-Shwartz et al. 2007. Every instance is visited once a pass, in random order; the iterate is then
w = Σ_l α_l s_l (features, context)_l with α_l = C_l · (the share of l's visits that found it within its
margin), which lies in the dual's box: the gap that certifies the dual solvers certifies this one too.
"""

from __future__ import annotations

import numpy as np
from scipy import sparse

from lmbm_torch.checks import check_count, check_positive
from lmbm_torch.solvers.base import Callback, SolverState
from lmbm_torch.solvers.networks import dual_coordinate
from lmbm_torch.solvers.networks.problems import Features, LabelProblems

BATCH = 16


def init(problems: LabelProblems) -> SolverState:
    """The state at zero weights."""
    return dual_coordinate.init(problems)


def update(problems: LabelProblems, state: SolverState, *, seed: int = 0) -> SolverState:
    """One pass over all instances in random order, in small batches, for all labels at once."""
    width, instances, passes = problems.num_features, problems.num_instances, state.num_passes
    # The sums of all steps so far; divided by the number of visits they are the weights, so that the factor
    # 1 − 1/t which every step applies to every weight costs nothing.
    visits = passes * instances
    sums = state.weights * visits
    hit = np.zeros(problems.spins.shape, np.bool_)
    order = np.random.default_rng((seed, passes)).permutation(instances)
    for start in range(0, instances, BATCH):
        batch = order[start : start + BATCH]
        columns, rows = _rows(problems.features, batch)
        context, spins = problems.context[batch], problems.spins[:, batch]
        fields = (rows @ sums[columns] + context @ sums[width:]) / max(visits, 1)
        hit[:, batch] = (spins * fields.T < problems.margin) & (spins != 0)
        steps = (hit[:, batch] * spins * problems.upper[batch] * instances).T
        sums[columns] += rows.T @ steps
        sums[width:] += (context.T @ steps) * problems.sees()
        visits += len(batch)
    # The mean of numbers in the box can be rounded out of it.
    duals = np.minimum((state.dual_coef * passes + hit * problems.upper) / (passes + 1), problems.upper)
    weights = sums / visits
    return SolverState(
        duals, weights, problems.primal(weights), problems.dual(duals, weights), num_passes=passes + 1
    )


def run(
    problems: LabelProblems,
    *,
    tol: float = 1e-2,
    max_passes: int = 1000,
    seed: int = 0,
    callback: Callback | None = None,
) -> SolverState:
    """Pass over the instances until the relative gap of all labels together is ``tol``.

    Args:
        tol: the relative duality gap at which to end; it falls as 1/passes.
        max_passes: the end, reached or not; ``state.gap`` tells.
        seed: of the order of visits.
        callback: called after every pass.

    Raises:
        ValueError: ``tol`` not above zero, ``max_passes`` below one, or missing labels, which this solver
            cannot impute on the way.
    """
    check_positive("tol", tol)
    check_count("max_passes", max_passes)
    missing = int((problems.spins == 0).sum())
    if missing:
        raise ValueError(f"problems: expected no missing labels, got {missing}; dual_coordinate imputes them")
    state = init(problems)
    while state.num_passes < max_passes and state.gap > tol:
        state = update(problems, state, seed=seed)
        if callback is not None:
            callback(state)
    return state


def _rows(features: Features, batch: np.ndarray) -> tuple[np.ndarray | slice, Features]:
    """Some instances, and the only columns in which they are not all zero."""
    rows = features[batch]
    if isinstance(rows, sparse.csr_array):
        columns = np.unique(rows.indices)
        return columns, rows[:, columns]
    return slice(rows.shape[1]), rows
