"""Dual coordinate descent for labels with shared weights of cliques, in plain NumPy: the readable reference.

The method is Algorithm 1 of large_margin_boltzmann_machines_2009 with 1/η_j in line 9: one dual after
another, each step exact and at the weights left by the step before.
"""

from __future__ import annotations

import numpy as np

from lmbm_torch.kernels.dual.plain.network import row_entries


def sweep(problem, curvature, weights, couplings, duals, sweeps, seed):
    """Run ``sweeps`` random sweeps over all instances, each visited once for all labels.

    Args:
        problem: a :class:`lmbm_torch.solvers.machines.problem.SharedProblem`.
        curvature: (labels, instances).
        weights: (features and constant, labels), changed in place.
        couplings: (shared weights,), changed in place.
        duals: (labels, instances), changed in place.
    """
    contexts = [problem.context(k) for k in range(len(duals))]
    random = np.random.default_rng(seed)
    for _ in range(sweeps):
        for i in random.permutation(duals.shape[1]):
            features, values = row_entries(problem.features, i)
            for k, (columns, seen) in enumerate(contexts):
                spin, sees = problem.spins[k, i], columns[i, 1:]
                field = values @ weights[features, k] + problem.constant * weights[-1, k]
                gradient = spin * (field + sees @ couplings[seen]) - problem.margin
                old, bound = duals[k, i], problem.upper[i]
                # A loss without weights cannot be reduced: the dual belongs at the upper bound.
                wished = old - gradient / curvature[k, i] if curvature[k, i] > 0 else bound
                duals[k, i] = min(max(wished, 0.0), bound)
                step = (duals[k, i] - old) * spin
                weights[features, k] += step * values
                weights[-1, k] += step * problem.constant
                couplings[seen] += step * sees / problem.penalty[seen]
