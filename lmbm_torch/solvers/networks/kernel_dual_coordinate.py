"""Dual ascent by pairs of instances for kernel label problems, to a certified duality gap.

Where it fits into memory, one matrix in single precision holds the joint kernel and is turned from label to
label, see :mod:`~.joint_kernels`; elsewhere parts of it do, see :mod:`~.kernel_parts`. Each label's fields in
double precision start the steps and certify their result, so that single precision costs at most a further
update.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Unpack

import numpy as np
import torch

from lmbm_torch.kernels.dual.plain.boxes import Box
from lmbm_torch.kernels.installed import kernels
from lmbm_torch.kernels.threads import share
from lmbm_torch.solvers.networks import states
from lmbm_torch.solvers.networks.joint_kernels import (
    BACKEND,
    JointKernel,
    fits,
    is_within_memory,
    matrix,
    most_instances,
)
from lmbm_torch.solvers.networks.kernel_parts import solve_parts
from lmbm_torch.solvers.networks.kernel_problems import KernelLabelProblems
from lmbm_torch.solvers.networks.states import NetworkState, UpdateSettings, limits

__all__ = ["fits", "init", "limits", "matrix", "next_stage", "update"]

# Share of a label's gap that is left when its fields are computed anew: so far single precision is trusted.
TRUSTED = 1e-4


@dataclass(frozen=True, kw_only=True)
class KernelState(NetworkState):
    """The state of a network's problems, with the labels' fields.

    Args:
        fields: z at ``weights``, (instances, labels).
        steps: those made so far, of all labels together.
    """

    fields: np.ndarray
    steps: int = 0


def init(problems: KernelLabelProblems, dual_coef: np.ndarray | None = None) -> KernelState:
    """The state at ``dual_coef`` (labels, instances), by default at zero.

    Raises:
        ValueError: duals of the wrong shape or outside their box [0, C_l].
    """
    return _certified(problems, problems.feasible(dual_coef), 0, next(problems.stages(), None))


class Expansions(NamedTuple):
    """A solution for labels by index, from which problems over the same kernel values can start.

    Args:
        dual_coef: (labels, instances).
        fields: Σ_j α_jk s_jk k(x_j, x_l), (instances, labels), without the context's part.
        parents: (labels, labels) of bool, row k the labels that label k saw.
    """

    dual_coef: np.ndarray
    fields: np.ndarray
    parents: np.ndarray

    @classmethod
    def of(cls, problems: KernelLabelProblems, dual_coef: np.ndarray, fields: np.ndarray) -> Expansions:
        """From the duals and the expansions by position."""
        by_label = np.argsort(problems.ordering)
        return cls(dual_coef[by_label], fields[:, by_label], problems.parents)


def start(problems: KernelLabelProblems, known: Sequence[Expansions]) -> KernelState:
    """The state at other solutions' duals, made feasible; its values are not certified yet.

    Each label begins with the solution in which its parents differ least, the last of several.
    """
    differences = (np.stack([one.parents for one in known]) ^ problems.parents).sum(2)
    nearest = len(known) - 1 - differences[::-1].argmin(0)
    dual_coef = np.stack([known[nearest[k]].dual_coef[k] for k in problems.ordering])
    box = problems.upper * (problems.spins != 0)
    if (dual_coef > box).any():
        return init(problems, np.minimum(dual_coef, box))
    fields = np.stack([known[nearest[k]].fields[:, k] for k in problems.ordering], 1)
    weights = problems.weights(dual_coef)
    fields += problems.context @ weights[problems.num_instances :]
    return _valued(problems, dual_coef, weights, fields, 0, next(problems.stages(), None))


def solution(problems: KernelLabelProblems, state: KernelState) -> Expansions:
    """A start for other problems over the same kernel values."""
    of_context = problems.context @ state.weights[problems.num_instances :]
    return Expansions.of(problems, state.dual_coef, state.fields - of_context)


def held_out(
    problems: KernelLabelProblems,
    folds: Sequence[np.ndarray],
    *,
    positions: Sequence[int] | None = None,
    tol: float,
    num_iters: int = 1000,
    seed: int = 0,
) -> np.ndarray:
    """Every instance's fields (instances, labels), learned without its fold.

    Gaps are those of the running fields, not certified. Where the joint kernel fits into memory, nothing
    depends on which labels are learned together.

    Args:
        problems: of labels that have no parents.
        folds: disjoint sets of instances, all together.
        positions: the labels to learn; all by default.
        tol, num_iters, seed: as in :func:`update`, of each fold.

    Raises:
        ValueError: labels with parents.
    """
    if (problems.shared > 1).any() or problems.cliques:
        raise ValueError("problems: expected labels without parents, got some with parents")
    state, joint = init(problems), JointKernel.whole(problems)
    labels = np.arange(problems.num_labels) if positions is None else np.array(positions)
    tols, random = dict.fromkeys(labels.tolist(), tol), np.random.default_rng(seed)
    has_room = is_within_memory(2, problems.num_instances)
    found = np.empty((problems.num_instances, len(labels)))
    for fold in folds:
        boxes = _boxes(problems, state, labels)
        solve = partial(_solve, problems, tols=tols, num_iters=num_iters, random=random)
        if joint is not None and has_room:
            found[fold] = _learned_from_others(joint, boxes, fold, solve)
            continue
        for box in boxes.values():
            box.lower[fold] = box.upper[fold] = 0
        solve(boxes, joint=joint)
        found[fold] = np.stack([box.gradient[fold] + box.linear[fold] for box in boxes.values()], 1)
    return found


def _learned_from_others(
    joint: JointKernel, boxes: dict[int, Box], fold: np.ndarray, solve: Callable[..., Any]
) -> np.ndarray:
    """The fields (fold, labels) of some instances after ``solve`` has learned from all others.

    These are gathered once for all labels: steps among all instances would also look at those held out.
    """
    values = joint.of(next(iter(boxes)))
    others = np.delete(np.arange(len(values)), fold)
    between = values[np.ix_(others, fold)]
    some = {label: Box(*(entries[others] for entries in box)) for label, box in boxes.items()}
    solve(some, joint=joint.among(others))
    return np.stack([box.coef.astype(between.dtype) @ between for box in some.values()], 1)


def next_stage(
    problems: KernelLabelProblems, state: KernelState
) -> tuple[KernelLabelProblems | None, KernelState]:
    """See :func:`~lmbm_torch.solvers.networks.states.next_stage`."""
    following = states.following_stage(problems, state)
    if following is None:
        return None, state
    completed = problems.impute(following[0] - 1, state.weights)
    return completed, _certified(completed, state.dual_coef, state.num_iters, following, state.steps)


class Ascent(NamedTuple):
    """Better duals of some labels.

    Args:
        labels: (labels,), positions.
        dual_coef: (labels, instances).
        num_iters: rounds that they took.
        steps: those of all labels together.
    """

    labels: np.ndarray
    dual_coef: np.ndarray
    num_iters: int
    steps: int


def update(
    problems: KernelLabelProblems, state: KernelState, **settings: Unpack[UpdateSettings]
) -> KernelState:
    """Up to ``num_iters`` further rounds for the labels whose relative gap is above ``tol``.

    A round makes as many steps as there are instances, or, where the joint kernel does not fit into memory,
    works once on the instances that matter.

    Args:
        settings: see :class:`~lmbm_torch.solvers.networks.states.UpdateSettings`.

    Raises:
        ValueError: a state of other problems, positions that are not there.
    """
    return after(problems, state, [ascent(problems, state, **settings)])


def ascent(problems: KernelLabelProblems, state: KernelState, **settings: Unpack[UpdateSettings]) -> Ascent:
    """What :func:`update` finds, and takes as its settings; :func:`after` makes a state of it.

    Where the joint kernel fits into memory and labels have no cliques, nothing depends on which labels are
    learned together.
    """
    labels, tol, num_iters, seed = states.work(problems, state, **settings)
    boxes = _boxes(problems, state, labels)
    if not boxes:
        return Ascent(labels, np.empty((0, problems.num_instances)), 0, 0)
    tols = dict(zip(boxes, np.maximum(tol, TRUSTED * state.gaps[labels]).tolist(), strict=True))
    random = np.random.default_rng((seed, state.num_iters))
    made = _solve(problems, boxes, tols, num_iters, random, JointKernel.whole(problems))
    duals = np.stack([box.coef for box in boxes.values()]) * problems.spins[labels]
    # Rounding may take for solved what is not quite: never without a round made.
    rounds = max(-(-max(made) // problems.num_instances), 1)
    return Ascent(labels, duals, rounds, sum(made))


def after(problems: KernelLabelProblems, state: KernelState, found: Sequence[Ascent]) -> KernelState:
    """The state with what was found of its labels, from one product with the kernel."""
    made = max(each.num_iters for each in found)
    if not made:
        return state
    duals = state.dual_coef.copy()
    for each in found:
        duals[each.labels] = each.dual_coef
    steps = state.steps + sum(each.steps for each in found)
    return _certified(problems, duals, state.num_iters + made, state.stage, steps)


def _certified(
    problems: KernelLabelProblems,
    dual_coef: np.ndarray,
    num_iters: int,
    stage: range | None,
    steps: int = 0,
) -> KernelState:
    """The state at these duals, from one product with the kernel."""
    weights = problems.weights(dual_coef)
    return _valued(problems, dual_coef, weights, problems.fields(weights), num_iters, stage, steps)


def _valued(
    problems: KernelLabelProblems,
    dual_coef: np.ndarray,
    weights: np.ndarray,
    fields: np.ndarray,
    num_iters: int,
    stage: range | None,
    steps: int = 0,
) -> KernelState:
    """The state at these duals, which give these weights and fields (instances, labels)."""
    half = 0.5 * (weights[: problems.num_instances] * fields).sum(0)
    primal = half + problems.weighed(problems.losses(fields))
    dual = problems.margin * dual_coef.sum(1) - half
    return KernelState(dual_coef, weights, primal, dual, num_iters, stage, fields=fields, steps=steps)


def _boxes(problems: KernelLabelProblems, state: KernelState, labels: np.ndarray) -> dict[int, Box]:
    """The duals of some labels by position, each with arrays of its own."""
    spins = problems.spins[labels].astype(np.float64)
    bound = (problems.upper if problems.upper.ndim == 1 else problems.upper[labels]) * spins
    linear = problems.margin * spins
    parts = (
        state.dual_coef[labels] * spins,
        np.minimum(bound, 0.0),
        np.maximum(bound, 0.0),
        np.subtract(state.fields.T[labels], linear, order="C"),
        linear,
    )
    return {label: Box(*values) for label, *values in zip(labels.tolist(), *parts, strict=True)}


def _solve(
    problems: KernelLabelProblems,
    boxes: dict[int, Box],
    tols: dict[int, float],
    num_iters: int,
    random: np.random.Generator,
    joint: JointKernel | None,
) -> list[int]:
    """Solve each label, by parts, in random order, without a joint kernel; the steps of each."""
    size = problems.num_instances
    if joint is None:
        return [size * solve_parts(problems, boxes, tols, num_iters, random)] * len(boxes)
    sees = problems.sees()[:, list(boxes)]
    at_once = min(torch.get_num_threads(), len(boxes))
    if is_one := bool((sees == sees[:, :1]).all()):
        joint.of(next(iter(boxes)))
    else:
        at_once = max(min(at_once, most_instances() ** 2 // size**2), 1)
    joints = [joint, *(joint if is_one else joint.copy() for _ in range(at_once - 1))]
    made: list[int] = []

    def work(task: tuple[np.ndarray, JointKernel]) -> None:
        labels, own = task
        for label in labels.tolist():
            found = kernels(*BACKEND).solve_label(own.of(label), boxes[label], tols[label], num_iters * size)
            made.append(found)

    share(list(zip(np.array_split(list(boxes), at_once), joints, strict=True)), work)
    return made
