"""Dual ascent by pairs of instances for kernel label problems, to a certified duality gap.

The joint kernels of two labels differ by the products of the spins that one of them does not see. Where it
fits, one matrix in single precision holds the joint kernel and is turned from label to label by these
products. Each label's fields in double precision start the steps and certify their result, so that single
precision costs at most a further update.

Where the matrix does not fit, a first round visits all instances a block at a time: its kernel values with
all instances are read once, each label is solved within it, and one matrix product tells all instances. In
every later round each label that is not solved gets a working set of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Unpack

import numpy as np
import torch

from lmbm_torch.backends.dual.plain.kernel_network import NEGLIGIBLE, Box
from lmbm_torch.backends.installed import kernels
from lmbm_torch.backends.threads import share
from lmbm_torch.solvers.networks import states
from lmbm_torch.solvers.networks.kernel_problems import KernelLabelProblems
from lmbm_torch.solvers.networks.states import NetworkState, UpdateSettings, limits

__all__ = ["init", "limits", "next_stage", "update"]

BACKEND = ("dual.kernel_network", "training of kernel networks")

# Bytes that joint kernels take at most.
MEMORY = 2**29
# Share of a label's gap that is left when its fields are computed anew: single precision can be trusted so far.
TRUSTED = 1e-4
# Instances whose kernel values are read at once, and that one label works on.
BLOCK = 1024
WORKING_SET = 2048
# Share of a label's gap at which its working set is chosen anew.
ROUND_TARGET = 0.1


@dataclass(frozen=True, kw_only=True)
class KernelState(NetworkState):
    """The state of a network's problems, with the labels' fields.

    Args:
        fields: z at ``weights``, (instances, labels).
    """

    fields: np.ndarray


def init(problems: KernelLabelProblems, dual_coef: np.ndarray | None = None) -> KernelState:
    """The state at ``dual_coef`` (labels, instances), by default at zero.

    Raises:
        ValueError: duals of the wrong shape or outside their box [0, C_l].
    """
    return _certified(problems, problems.feasible(dual_coef), 0, next(problems.stages(), None))


def next_stage(
    problems: KernelLabelProblems, state: KernelState
) -> tuple[KernelLabelProblems | None, KernelState]:
    """See :func:`~lmbm_torch.solvers.networks.states.next_stage`."""
    following = states.following_stage(problems, state)
    if following is None:
        return None, state
    completed = problems.impute(following[0] - 1, state.weights)
    return completed, _certified(completed, state.dual_coef, state.num_iters, following)


def update(
    problems: KernelLabelProblems, state: KernelState, **settings: Unpack[UpdateSettings]
) -> KernelState:
    """Up to ``num_iters`` further rounds for the labels whose relative gap is above ``tol``.

    A round makes as many steps as there are instances, or, where the joint kernel does not fit into memory,
    works once on each block or on a working set.

    Args:
        settings: see :class:`~lmbm_torch.solvers.networks.states.UpdateSettings`.

    Raises:
        ValueError: a state of other problems, positions that are not there.
    """
    labels, tol, num_iters, seed = states.work(problems, state, **settings)
    if not len(labels):
        return state
    boxes = {label: _box(problems, state, label) for label in labels.tolist()}
    tol = max(tol, TRUSTED * state.gaps[labels].max())
    if 4 * problems.num_instances**2 <= MEMORY:
        made = _solve_whole(problems, boxes, tol, num_iters)
    else:
        order = np.random.default_rng((seed, state.num_iters)).permutation(problems.num_instances)
        made = _solve_parts(problems, boxes, tol, num_iters, order)
    duals = state.dual_coef.copy()
    for label, box in boxes.items():
        duals[label] = box.coef * problems.spins[label]
    # Rounding may take for solved what is not quite: never without a round made.
    return _certified(problems, duals, state.num_iters + max(made, 1), state.stage)


def _certified(
    problems: KernelLabelProblems, dual_coef: np.ndarray, num_iters: int, stage: range | None
) -> KernelState:
    """The state at these duals, from one product with the kernel."""
    weights = problems.weights(dual_coef)
    fields = problems.fields(weights)
    half = 0.5 * (weights[: problems.num_instances] * fields).sum(0)
    primal = half + problems.upper @ problems.losses(fields)
    dual = problems.margin * dual_coef.sum(1) - half
    return KernelState(dual_coef, weights, primal, dual, num_iters, stage, fields=fields)


def _box(problems: KernelLabelProblems, state: KernelState, label: int) -> Box:
    spins = problems.spins[label].astype(np.float64)
    bound, linear = problems.upper * spins, problems.margin * spins
    return Box(
        coef=state.dual_coef[label] * spins,
        lower=np.minimum(bound, 0.0),
        upper=np.maximum(bound, 0.0),
        gradient=state.fields[:, label] - linear,
        linear=linear,
    )


class _Joint:
    """The joint kernel of some instances, of one label after the other.

    Args:
        values: (instances, instances) of the features' kernel, changed in place.
        index: the instances.
    """

    def __init__(self, problems: KernelLabelProblems, values: np.ndarray, index: np.ndarray | slice) -> None:
        self.values = values
        self._problems = problems
        self._context = np.ascontiguousarray(problems.context[index].T, values.dtype)
        self._seen = np.zeros(len(self._context), bool)

    def of(self, label: int) -> np.ndarray:
        """The values for the label at this position; valid until the next call."""
        sees = self._problems.sees()[:, label]
        new = np.flatnonzero(sees != self._seen)
        sign = np.where(sees[new], 1.0, -1.0)
        kernels(*BACKEND).add_columns(self.values, self._context[new], sign * self._problems.scale[new])
        self._seen = sees
        return self.values


def _solve_whole(problems: KernelLabelProblems, boxes: dict[int, Box], tol: float, num_iters: int) -> int:
    """Solve each label in memory, labels in parallel; the most rounds that one took."""
    size = problems.num_instances
    at_once = min(torch.get_num_threads(), len(boxes), max(MEMORY // (4 * size**2), 1))
    first = np.empty((size, size), np.float32)
    for start in range(0, size, BLOCK):
        index = np.arange(start, min(start + BLOCK, size))
        first[index[0] : index[-1] + 1] = problems.rows(index)
    whole = [first, *(first.copy() for _ in range(at_once - 1))]
    made: list[int] = []

    def work(task: tuple[Sequence[int], np.ndarray]) -> None:
        labels, values = task
        joint = _Joint(problems, values, slice(None))
        for label in labels:
            found = kernels(*BACKEND).solve_label(joint.of(label), boxes[label], tol, num_iters * size)
            made.append(-(-found // size))

    share(list(zip(np.array_split(list(boxes), at_once), whole, strict=True)), work)
    return max(made)


def _solve_parts(
    problems: KernelLabelProblems, boxes: dict[int, Box], tol: float, num_iters: int, order: np.ndarray
) -> int:
    """Rounds on parts of the joint kernels; how many."""
    for made in range(num_iters):
        left = {label: box for label, box in boxes.items() if _gap(box) > tol * _primal(box)}
        if not left:
            return made
        if made == 0 and not any(box.coef.any() for box in boxes.values()):
            for first in range(0, len(order), BLOCK):
                _solve_block(problems, boxes, np.sort(order[first : first + BLOCK]))
        else:
            for label, box in left.items():
                _solve_working_set(problems, label, box, tol)
    return num_iters


def _solve_block(problems: KernelLabelProblems, boxes: dict[int, Box], index: np.ndarray) -> None:
    """Solve all labels among some instances, one after the other, and tell all instances at once."""
    values = problems.rows(index)
    joint = _Joint(problems, values[:, index].astype(np.float32), index)
    changes = np.empty((len(boxes), len(index)))
    for row, (label, box) in enumerate(boxes.items()):
        changes[row] = _solve_among(joint.of(label), box, index, ROUND_TARGET)
    sees = problems.sees().T[list(boxes)] * problems.scale
    gained = changes @ values + ((changes @ problems.context[index]) * sees) @ problems.context.T
    for row, box in enumerate(boxes.values()):
        box.gradient[:] += gained[row]


def _solve_working_set(problems: KernelLabelProblems, label: int, box: Box, tol: float) -> None:
    """Work on the instances that matter to one label."""
    shares = _shares(box)
    inside = (box.coef > box.lower) & (box.coef < box.upper)
    index = np.flatnonzero(inside | (shares > NEGLIGIBLE * shares.mean()))
    if len(index) > WORKING_SET:
        index = np.sort(index[np.argsort(-shares[index], kind="stable")[:WORKING_SET]])
    values = problems.rows(index)
    joint = _Joint(problems, values[:, index].astype(np.float32), index)
    change = _solve_among(
        joint.of(label), box, index, max(ROUND_TARGET * _gap(box) / _primal(box), 0.3 * tol)
    )
    own = (change @ problems.context[index]) * problems.sees()[:, label] * problems.scale
    box.gradient[:] += change @ values + problems.context @ own


def _solve_among(joint: np.ndarray, box: Box, index: np.ndarray, tol: float) -> np.ndarray:
    """Solve one label's problem among some instances; how their β change."""
    some = Box(*(values[index] for values in box))
    kernels(*BACKEND).solve_label(joint, some, tol, 10 * len(index))
    change = some.coef - box.coef[index]
    box.coef[index] = some.coef
    return change


def _shares(box: Box) -> np.ndarray:
    return box.gradient * (box.coef - np.where(box.gradient > 0, box.lower, box.upper))


def _gap(box: Box) -> float:
    return float(_shares(box).sum())


def _primal(box: Box) -> float:
    return _gap(box) + 0.5 * float(box.coef @ (box.linear - box.gradient))
