"""Dual coordinate descent on some instances of kernel label problems, in plain NumPy.

The readable reference of the compiled one: the same two functions with the same arguments, but no steps on
faces. The losses' ``fields`` and ``duals`` are changed in place.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

TINY = 1e-300
"""Curvature of an instance that is alike to nothing, itself included: its dual goes to a bound."""


class Kernel(NamedTuple):
    """The joint kernels of some labels among a block's instances.

    Args:
        gram: (block, block), the features' kernel.
        context: (block, columns), the context, columns times the roots of their weights in the kernel.
        shared: (all labels,); own: (all labels + 1,): which columns each label sees, as in
            :class:`lmbm_torch.solvers.networks.problems.NetworkProblems`.
        labels: positions to work on, ascending.
    """

    gram: np.ndarray
    context: np.ndarray
    shared: np.ndarray
    own: np.ndarray
    labels: np.ndarray


class Losses(NamedTuple):
    """Hinge losses of some instances, with a first axis ``labels`` but for ``upper`` where there are several.

    Args:
        upper: (instances,).
        margin: γ.
        spins: (instances,), 0 where there is no loss.
        fields: (instances,), z; ``duals`` (instances,).
    """

    upper: np.ndarray
    margin: float
    spins: np.ndarray
    fields: np.ndarray
    duals: np.ndarray


def solve_block(kernel, losses, sweeps):
    """``sweeps`` sweeps over a block's instances for each of the labels."""
    gram, context, shared, own, labels = kernel
    upper, margin, *by_label = losses
    for label, *each in zip(labels, *by_label, strict=True):
        columns = [*range(shared[label]), *range(own[label], own[label + 1])]
        joint = gram + context[:, columns] @ context[:, columns].T
        for _ in range(sweeps):
            _sweep(joint, Losses(upper, margin, *each))


def solve_label(joint, losses, goal, cycles, sweeps, _steps):
    """Up to ``cycles`` times ``sweeps`` sweeps for one label, until its gap here is at most ``goal``.

    Args:
        joint: (instances, instances), all of the joint kernel among these instances.
    """
    upper, margin, spins, fields, duals = losses
    for _ in range(cycles):
        for _ in range(sweeps):
            _sweep(joint, losses)
        gradient = spins * fields - margin
        shares = np.where(gradient > 0, duals, duals - upper) * gradient
        if shares[spins != 0].sum() <= goal:
            return


def _sweep(joint, losses):
    upper, margin, spins, fields, duals = losses
    for i in np.flatnonzero((spins != 0) & (upper > 0)):
        gradient = spins[i] * fields[i] - margin
        new = np.clip(duals[i] - gradient / max(joint[i, i], TINY), 0.0, upper[i])
        fields += (new - duals[i]) * spins[i] * joint[i]
        duals[i] = new
