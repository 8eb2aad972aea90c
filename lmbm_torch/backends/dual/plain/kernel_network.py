"""Dual coordinate descent on some instances of kernel label problems, in plain NumPy.

The readable reference of the compiled one: the same two functions with the same arguments, but no steps on
faces. ``fields`` and ``duals`` are changed in place.
"""

from __future__ import annotations

import numpy as np

TINY = 1e-300
"""Curvature of an instance that is alike to nothing, itself included: its dual goes to a bound."""


def solve_block(gram, context, shared, own, labels, spins, upper, margin, fields, duals, sweeps):
    """``sweeps`` sweeps over a block's instances for each of ``labels``.

    Args:
        gram: (block, block), the kernel among the block's instances.
        context: (block, columns), their context, columns times the roots of their weights in the kernel.
        shared, own: which columns each label sees, as in
            :class:`lmbm_torch.solvers.networks.problems.NetworkProblems`.
        labels: positions to work on, ascending; one row of spins, fields and duals for each.
        spins: (labels, block), 0 where there is no loss.
        upper: (block,).
        fields, duals: (labels, block).
    """
    for row, label in enumerate(labels):
        columns = [*range(shared[label]), *range(own[label], own[label + 1])]
        joint = gram + context[:, columns] @ context[:, columns].T
        for _ in range(sweeps):
            _sweep(joint, spins[row], upper, margin, fields[row], duals[row])


def solve_label(joint, spins, upper, margin, fields, duals, goal, cycles, sweeps, _steps):
    """Up to ``cycles`` times ``sweeps`` sweeps for one label, until its gap here is at most ``goal``.

    Args:
        joint: (instances, instances), all of the joint kernel among these instances.
        spins, upper, fields, duals: (instances,).
    """
    for _ in range(cycles):
        for _ in range(sweeps):
            _sweep(joint, spins, upper, margin, fields, duals)
        gradient = spins * fields - margin
        shares = np.where(gradient > 0, duals, duals - upper) * gradient
        if shares[spins != 0].sum() <= goal:
            return


def _sweep(joint, spins, upper, margin, fields, duals):
    for i in np.flatnonzero((spins != 0) & (upper > 0)):
        gradient = spins[i] * fields[i] - margin
        new = np.clip(duals[i] - gradient / max(joint[i, i], TINY), 0.0, upper[i])
        fields += (new - duals[i]) * spins[i] * joint[i]
        duals[i] = new
