"""Cutting planes of a structural SVM in plain NumPy, the readable reference: steps, products and sums.

Planes are a :class:`lmbm_torch.solvers.structural.problems.CuttingPlanes`; ``first`` (planes,) is the first
output of each plane's example in an array of all rows' outputs. Unlike the compiled sweeps, no sweep leaves
out an example.
"""

from __future__ import annotations

import numpy as np

# Most steps on one example per visit.
STEPS_PER_VISIT = 10


def sweeps(problem, planes, weights, dual_coef, examples, target, max_sweeps, seed):
    """Run up to ``max_sweeps`` random sweeps, or until the gaps of one sweep sum to at most ``target``.

    The arrays of ``weights``, features (outputs, features + 1) and couplings, and ``dual_coef`` change in
    place.

    Returns:
        The number of sweeps made.
    """
    outputs, start, penalty = problem.num_outputs, problem.start, problem.coupling_penalty
    features, couplings = weights
    first = np.searchsorted(planes.example, np.arange(problem.num_examples + 1))
    random = np.random.default_rng(seed)
    for made in range(max_sweeps):
        gap = 0.0
        for each in random.permutation(examples):
            own = slice(first[each], first[each + 1])
            size = start[each + 1] - start[each]
            product = problem.gram[problem.gram_start[each] : problem.gram_start[each + 1]].reshape(
                size, size
            )
            block = problem.features[start[each] : start[each + 1]]
            block = block.toarray() if hasattr(block, "toarray") else block
            block = np.hstack([block, np.ones((size, 1))])
            statistics = np.zeros((own.stop - own.start, size * outputs + len(couplings)))
            for p in range(own.start, own.stop):
                entries = slice(planes.start[p], planes.start[p + 1])
                index = planes.index[entries]
                place = np.where(index < 0, size * outputs - 1 - index, index)
                statistics[p - own.start, place] = planes.value[entries]
            unary, pairs = np.split(statistics, [size * outputs], axis=1)
            unary = unary.reshape(-1, size, outputs)
            duals = dual_coef[own]
            for step in range(STEPS_PER_VISIT):
                scores = block @ features.T
                values = planes.loss[own] - np.einsum("pto,to->p", unary, scores) - pairs @ couplings
                up = values.argmax()
                down = np.where(duals > 0, values, np.inf).argmin()
                if step == 0:
                    gap += duals.sum() * values[up] - duals @ values
                rise = values[up] - values[down]
                if rise <= 0:
                    break
                along, beside = unary[up] - unary[down], pairs[up] - pairs[down]
                square = np.einsum("to,tu,uo->", along, product, along) + beside @ beside / penalty
                amount = min(duals[down], rise / square) if square > 0 else duals[down]
                duals[up] += amount
                duals[down] -= amount
                features += amount * along.T @ block
                couplings += amount * beside / penalty
        if gap <= target:
            return made + 1
    return max_sweeps


def products(planes, first, unary, couplings):
    """Return ⟨w, ψ⟩ of each plane, (planes,).

    Args:
        unary: (rows · outputs,), the scores of all rows' outputs.
        couplings: (couplings,).
    """
    every = np.concatenate([unary, couplings])
    terms = planes.value * every[_positions(planes, first, len(unary))]
    return np.bincount(planes.plane, terms, len(planes))


def sums(planes, first, dual_coef, size, num_couplings):
    """Return Σ_p α_p ψ_p: the rows' outputs (size,), then couplings (num_couplings,)."""
    terms = planes.value * dual_coef[planes.plane]
    return np.bincount(_positions(planes, first, size), terms, size + num_couplings)


def entries(planes, chosen, start):
    """Return index and value of the entries of the ``chosen`` planes; the new planes begin at ``start``."""
    count = np.diff(start)
    places = np.arange(start[-1]) + np.repeat(planes.start[chosen] - start[:-1], count)
    return planes.index[places], planes.value[places]


def _positions(planes, first, size):
    """Return the position of each entry's weight among the rows' outputs, followed by the couplings."""
    return np.where(planes.index < 0, size - 1 - planes.index, first[planes.plane] + planes.index)
