"""Pegasos for label problems: stochastic subgradient steps of size 1/(λt), with a duality gap.

Shalev-Shwartz et al. 2007. Every instance is visited once a pass, in random order; the iterate is then
w = Σ_l α_l s_l (features, context)_l with α_l = C_l · (the share of l's visits that found it within its
margin), which lies in the dual's box: the gap that certifies the dual solvers certifies this one too.
"""

from __future__ import annotations

import numpy as np
from scipy import sparse

from lmbm_torch.solvers.networks.problems import Features, LabelProblems
from lmbm_torch.solvers.networks.states import NetworkState, certified

BATCH = 16


def init(problems: LabelProblems) -> NetworkState:
    """The state at zero weights.

    Raises:
        ValueError: missing labels, which this solver cannot impute on the way.
    """
    missing = int((problems.spins == 0).sum())
    if missing:
        raise ValueError(f"problems: expected no missing labels, got {missing}; dual_coordinate imputes them")
    return certified(problems, np.zeros(problems.spins.shape), num_iters=0)


def update(problems: LabelProblems, state: NetworkState, *, seed: int = 0) -> NetworkState:
    """One pass over all instances in random order, in small batches, for all labels at once."""
    instances, passes = problems.num_instances, state.num_iters
    # The sums of all steps so far; divided by the number of visits they are the weights, so that the factor
    # 1 − 1/t which every step applies to every weight costs nothing.
    visits = passes * instances
    sums = state.weights * visits
    order = np.random.default_rng((seed, passes)).permutation(instances)
    hit = step_along(problems, sums, visits, order, instances)
    visits += instances
    # The mean of numbers in the box can be rounded out of it.
    duals = np.minimum((state.dual_coef * passes + hit * problems.upper) / (passes + 1), problems.upper)
    weights = sums / visits
    return NetworkState(duals, weights, problems.primal(weights), problems.dual(duals, weights), passes + 1)


def step_along(
    problems: LabelProblems, sums: np.ndarray, visits: int, order: np.ndarray, epoch: int
) -> np.ndarray:
    """Visit the instances in ``order``, in small batches, for all labels at once.

    Args:
        sums: (columns, labels), of all steps so far, changed in place; divided by the visits so far and these
            they are the weights.
        visits: so far.
        epoch: the instances whose losses the objective sums up: 1/λ = C · epoch.

    Returns:
        Which instances were within the margin, (labels, instances).
    """
    width = problems.num_features
    hit = np.zeros(problems.spins.shape, np.bool_)
    for start in range(0, len(order), BATCH):
        batch = order[start : start + BATCH]
        columns, rows = _rows(problems.features, batch)
        context, spins = problems.context[batch], problems.spins[:, batch]
        fields = (rows @ sums[columns] + context @ sums[width:]) / max(visits, 1)
        hit[:, batch] = (spins * fields.T < problems.margin) & (spins != 0)
        steps = (hit[:, batch] * spins * problems.upper[..., batch] * epoch).T
        sums[columns] += rows.T @ steps
        sums[width:] += (context.T @ steps) * problems.sees()
        visits += len(batch)
    return hit


def _rows(features: Features, batch: np.ndarray) -> tuple[np.ndarray | slice, Features]:
    """Some instances, and the only columns in which they are not all zero."""
    rows = features[batch]
    if isinstance(rows, sparse.csr_array):
        columns = np.unique(rows.indices)
        return columns, rows[:, columns]
    return slice(rows.shape[1]), rows
