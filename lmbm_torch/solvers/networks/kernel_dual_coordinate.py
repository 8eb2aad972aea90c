"""Dual coordinate descent for kernel label problems, to a certified duality gap.

All labels' fields at all instances are kept, so the gap is known at every moment, and each instance's share
of it: with the gradient g_l = s_l z_l − γ of the (negative) dual,

    primal − dual = Σ_l α_l [g_l]_+ + (C_l − α_l) [−g_l]_+ .

The first round visits all instances once for all labels, a block at a time: its kernel values with all
instances are read once, each label's problem is swept over within it, and one matrix product tells all
instances. In every later round each label that is not solved gets a working set of its own, the free duals
and the largest shares, whose joint kernel is held in memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Unpack

import numpy as np

from lmbm_torch.backends.dual.plain.kernel_network import Kernel, Losses
from lmbm_torch.backends.installed import kernels
from lmbm_torch.solvers.networks import states
from lmbm_torch.solvers.networks.kernel_problems import KernelLabelProblems
from lmbm_torch.solvers.networks.states import NetworkState, UpdateSettings, init, limits, next_stage

__all__ = ["init", "limits", "next_stage", "update"]

BACKEND = ("dual.kernel_network", "training of kernel networks")

BLOCK = 64
BLOCK_SWEEPS = 3
# Instances that one label works on, at most: their kernel values take 32 MiB.
WORKING_SET = 2048
# Share of the mean gap below which an instance is left out; of a label's gap, at which to look again.
NEGLIGIBLE = 0.01
ROUND_TARGET = 0.05
MAX_CYCLES = 20
SWEEPS_PER_CYCLE = 5
CONJUGATE_STEPS = 30


@dataclass(frozen=True)
class _Dual:
    """Duals and fields, (labels, instances), of the labels at ``positions``; both are changed in place."""

    problems: KernelLabelProblems
    positions: np.ndarray
    spins: np.ndarray
    context: np.ndarray
    sees: np.ndarray
    duals: np.ndarray
    fields: np.ndarray

    @classmethod
    def of(cls, problems: KernelLabelProblems, state: NetworkState, positions: np.ndarray) -> _Dual:
        return cls(
            problems=problems,
            positions=positions,
            spins=problems.spins[positions].astype(np.float64),
            context=problems.context * np.sqrt(problems.scale),
            sees=problems.sees().T[positions],
            duals=state.dual_coef[positions],
            fields=np.ascontiguousarray(problems.fields(state.weights[:, positions]).T),
        )

    def values(self) -> tuple[np.ndarray, np.ndarray]:
        """Every instance's share of the gap, (labels, instances), and the primal values, (labels,)."""
        gradient = self.spins * self.fields - self.problems.margin
        box = self.problems.upper * (self.spins != 0)
        shares = np.where(gradient > 0, self.duals, self.duals - box) * gradient
        losses = (box * np.maximum(-gradient, 0.0)).sum(1)
        return shares, 0.5 * (self.duals * self.spins * self.fields).sum(1) + losses


def update(
    problems: KernelLabelProblems, state: NetworkState, **settings: Unpack[UpdateSettings]
) -> NetworkState:
    """Up to ``num_iters`` further rounds for the labels whose relative gap is above ``tol``.

    A round from zero is a sweep over all instances, each block read once for all labels; any other works on
    the instances that still matter to each label.

    Args:
        settings: see :class:`~lmbm_torch.solvers.networks.states.UpdateSettings`.

    Raises:
        ValueError: a state of other problems, positions that are not there.
    """
    labels, tol, num_iters, seed = states.work(problems, state, **settings)
    if not len(labels):
        return state
    dual, made = _Dual.of(problems, state, labels), 0
    while made < num_iters:
        shares, primal = dual.values()
        going_on = np.flatnonzero(shares.sum(1) > tol * primal)
        if not len(going_on):
            break
        if not dual.duals.any():
            _sweep(dual, np.random.default_rng((seed, state.num_iters)).permutation(problems.num_instances))
        else:
            for row in going_on.tolist():
                _work(dual, row, shares[row], tol * primal[row])
        made += 1
    duals = state.dual_coef.copy()
    duals[labels] = dual.duals
    # Fields that drift by round-off may take for solved what is not quite: never without a round made.
    return states.certified(problems, duals, state.num_iters + max(made, 1), state.stage)


def _sweep(dual: _Dual, order: np.ndarray) -> None:
    """Visit all instances, block by block, for all labels."""
    problems = dual.problems
    for first in range(0, len(order), BLOCK):
        index = np.sort(order[first : first + BLOCK])
        values, duals = problems.rows(index), np.ascontiguousarray(dual.duals[:, index])
        kernel = Kernel(
            *(np.ascontiguousarray(values[:, index]), dual.context[index]),
            *(problems.shared, problems.own, dual.positions),
        )
        spins, fields = (np.ascontiguousarray(each[:, index]) for each in (dual.spins, dual.fields))
        losses = Losses(problems.upper[index], problems.margin, spins, fields, duals)
        kernels(*BACKEND).solve_block(kernel, losses, BLOCK_SWEEPS)
        change = (duals - dual.duals[:, index]) * dual.spins[:, index]
        dual.duals[:, index] = duals
        dual.fields[:] += change @ values + ((change @ dual.context[index]) * dual.sees) @ dual.context.T


def _work(dual: _Dual, row: int, shares: np.ndarray, slack: float) -> None:
    """Solve one label's problem over the instances that matter, until about ``slack`` of its gap is left."""
    problems = dual.problems
    upper = problems.upper * (dual.spins[row] != 0)
    is_free = (dual.duals[row] > 0) & (dual.duals[row] < upper)
    index = np.flatnonzero(is_free | (shares > NEGLIGIBLE * shares.mean()))
    if len(index) > WORKING_SET:
        index = np.sort(index[np.argsort(-shares[index], kind="stable")[:WORKING_SET]])
    values = problems.rows(index) + (dual.context[index] * dual.sees[row]) @ dual.context.T
    duals = dual.duals[row, index]
    losses = Losses(
        *(problems.upper[index], problems.margin, dual.spins[row, index], dual.fields[row, index], duals)
    )
    goal = max(ROUND_TARGET * shares.sum(), 0.3 * slack)
    joint = np.ascontiguousarray(values[:, index])
    kernels(*BACKEND).solve_label(joint, losses, goal, MAX_CYCLES, SWEEPS_PER_CYCLE, CONJUGATE_STEPS)
    dual.fields[row] += ((duals - dual.duals[row, index]) * dual.spins[row, index]) @ values
    dual.duals[row, index] = duals
