"""Pegasos for label problems: stochastic subgradient steps of size 1/(λt), with a duality gap.

Source: Shalev-Shwartz et al. 2007. A pass visits every instance once, in random order. The weights are then
w = Σ_l α_l s_l (features, context)_l with α_l = C_l · (share of the visits to instance l at which its margin
was below γ). These α are feasible in the dual, so the duality gap of the dual solvers is valid here, too.
"""

from __future__ import annotations

import numpy as np
from scipy import sparse

from lmbm_torch.solvers.networks.problems import Features, LabelProblems, NetworkState, certified

BATCH = 16


def init(problems: LabelProblems) -> NetworkState:
    """Return the state at zero weights.

    Raises:
        ValueError: labels are missing, which Pegasos does not impute.
    """
    missing = int((problems.spins == 0).sum())
    if missing:
        raise ValueError(f"problems: expected no missing labels, got {missing}; use dual_coordinate")
    return certified(problems, np.zeros(problems.spins.shape), num_iters=0)


def update(problems: LabelProblems, state: NetworkState, *, seed: int = 0) -> NetworkState:
    """Make one pass over all instances in random order, in small batches, for all labels at once."""
    instances, passes = problems.num_instances, state.num_iters
    # Store the sum of the steps, and divide by the number of visits to get the weights: so the factor 1 − 1/t
    # need not be applied to all weights at every step.
    visits = passes * instances
    sums = np.stack([state.weights * visits, np.zeros_like(state.weights)])
    order = np.random.default_rng((seed, passes)).permutation(instances)
    hit = step_along(problems, sums, visits, order, instances)
    visits += instances
    # Round-off may lift a mean above the upper bound, so take the minimum.
    duals = np.minimum((state.dual_coef * passes + hit * problems.upper) / (passes + 1), problems.upper)
    weights = sums[0] / visits
    return NetworkState(duals, weights, problems.primal(weights), problems.dual(duals, weights), passes + 1)


def step_along(
    problems: LabelProblems, sums: np.ndarray, visits: int, order: np.ndarray, epoch: int
) -> np.ndarray:
    """Visit the instances in ``order``, in small batches, for all labels at once.

    Args:
        sums: (2, columns, labels), changed in place: the sum of all steps so far, and the sum of the steps,
            each times the number of visits at that time. The weights are the first sum divided by ``visits``.
        visits: the number of visits so far.
        epoch: the number of instances in the objective: 1/λ = C · epoch.

    Returns:
        For each label and instance, whether the instance was within the margin, (labels, instances).
    """
    width = problems.num_features
    hit = np.zeros(problems.spins.shape, np.bool_)
    for start in range(0, len(order), BATCH):
        batch = order[start : start + BATCH]
        columns, rows = _rows(problems.features, batch)
        context, spins = problems.context[batch], problems.spins[:, batch]
        fields = (rows @ sums[0, columns] + context @ sums[0, width:]) / max(visits, 1)
        hit[:, batch] = (spins * fields.T < problems.margin) & (spins != 0)
        steps = (hit[:, batch] * spins * problems.upper[..., batch] * epoch).T
        visits += len(batch)
        weight = np.array([1.0, visits])[:, None, None]
        sums[:, columns] += weight * (rows.T @ steps)
        sums[:, width:] += weight * (context.T @ steps) * problems.sees
    return hit


def mean_weights(sums: np.ndarray, visits: int) -> np.ndarray:
    """Average the weights after all visits t = 1, 2, …, weighted by t, from the sums of :func:`step_along`.

    The last weights still move with each step; the error of the mean has no factor log t (Lacoste-Julien et
    al. 2012). As the weights after visit t are the sum of the steps divided by t, a step at visit s enters
    the sum visits − s + 1 times.
    """
    return 2 / visits * (sums[0] - sums[1] / (visits + 1))


def _rows(features: Features, batch: np.ndarray) -> tuple[np.ndarray | slice, Features]:
    """Return the columns with a non-zero entry in ``batch``, and the batch restricted to these columns."""
    rows = features[batch]
    if isinstance(rows, sparse.csr_array):
        columns = np.unique(rows.indices)
        return columns, rows[:, columns]
    return slice(rows.shape[1]), rows
