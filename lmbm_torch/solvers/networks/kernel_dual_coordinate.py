"""Dual ascent by pairs of instances for kernel label problems, to a certified duality gap.

A matrix in single precision holds the joint kernel (beyond the memory limit, parts of it) of one label after
another; see :mod:`~.joint_kernels`. Fields in double precision start the steps and certify the result, so
single precision costs at most one more update.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Unpack

import numpy as np
import torch

from lmbm_torch.kernels.dual.records import Box
from lmbm_torch.kernels.installed import kernels
from lmbm_torch.kernels.threads import share
from lmbm_torch.solvers.networks import states
from lmbm_torch.solvers.networks.joint_kernels import (
    JointKernel,
    is_within_memory,
    most_instances,
    solve_parts,
)
from lmbm_torch.solvers.networks.joint_kernels import fits as fits
from lmbm_torch.solvers.networks.joint_kernels import matrix as matrix
from lmbm_torch.solvers.networks.kernel_problems import KernelLabelProblems
from lmbm_torch.solvers.networks.states import NetworkState, UpdateSettings
from lmbm_torch.solvers.networks.states import limits as limits

# Fields are computed again when a label's gap has fallen to this share, the limit of single precision.
TRUSTED = 1e-4


@dataclass(frozen=True, kw_only=True)
class KernelState(NetworkState):
    """The state of a network's problems, with the labels' fields.

    Args:
        fields: z at ``weights``, (instances, labels).
    """

    fields: np.ndarray


def init(problems: KernelLabelProblems, dual_coef: np.ndarray | None = None) -> KernelState:
    """Return the state at ``dual_coef`` (labels, instances), by default at zero.

    Raises:
        ValueError: the duals have a wrong shape, or are outside the box [0, C_l].
    """
    return _certified(problems, problems.feasible(dual_coef), 0, next(problems.stages(), None))


class Expansions(NamedTuple):
    """A solution for labels by index, as a start for problems with the same kernel values.

    Args:
        dual_coef: (labels, instances).
        fields: Σ_j α_jk s_jk k(x_j, x_l), (instances, labels), without the part of the context.
        parents: boolean (labels, labels); row k marks the parents of label k.
    """

    dual_coef: np.ndarray
    fields: np.ndarray
    parents: np.ndarray

    @classmethod
    def of(cls, problems: KernelLabelProblems, dual_coef: np.ndarray, fields: np.ndarray) -> Expansions:
        """Convert duals and expansions by position."""
        by_label = np.argsort(problems.ordering)
        return cls(dual_coef[by_label], fields[:, by_label], problems.parents)


def start(problems: KernelLabelProblems, known: Sequence[Expansions]) -> KernelState:
    """Return the uncertified state at the duals of known solutions, made feasible.

    Each label starts from the solution with the most similar parents; at ties, from the last one.
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
    """Return a start for other problems with the same kernel values."""
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
    """Compute each instance's fields, (instances, labels), by models trained without the instance's fold.

    The gaps at which training stops are computed from running fields and are not certified. If the joint
    kernel fits into memory, results do not depend on which labels are trained together.

    Args:
        problems: problems of labels without parents.
        folds: disjoint sets of instances, a partition.
        positions: the labels to train; by default all.
        tol: as for :func:`update`, for each fold.
        num_iters: as for :func:`update`, for each fold.
        seed: as for :func:`update`.

    Raises:
        ValueError: a label has parents.
    """
    if (problems.shared > 1).any() or problems.cliques:
        raise ValueError("problems: expected labels without parents, got labels with parents")
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
    """Compute the fields (fold, labels) of a fold after ``solve`` has trained on the remaining instances.

    The remaining instances are copied once for all labels: steps on the whole matrix would read held-out
    rows, too.
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
    """Impute missing labels between stages, see :func:`~lmbm_torch.solvers.networks.states.next_stage`."""
    following = states.following_stage(problems, state)
    if following is None:
        return None, state
    completed = problems.impute(following[0] - 1, state.weights)
    return completed, _certified(completed, state.dual_coef, state.num_iters, following)


class Ascent(NamedTuple):
    """Improved duals of some labels.

    Args:
        labels: (labels,), positions.
        dual_coef: (labels, instances).
        num_iters: number of rounds.
    """

    labels: np.ndarray
    dual_coef: np.ndarray
    num_iters: int


def update(
    problems: KernelLabelProblems, state: KernelState, **settings: Unpack[UpdateSettings]
) -> KernelState:
    """Make up to ``num_iters`` rounds for the labels with a relative gap above ``tol``.

    A round makes as many steps as instances; beyond the memory limit, it solves the active instances once.

    Args:
        settings: see :class:`~lmbm_torch.solvers.networks.states.UpdateSettings`.

    Raises:
        ValueError: a state of other problems, unknown positions.
    """
    return after(problems, state, [ascent(problems, state, **settings)])


def ascent(problems: KernelLabelProblems, state: KernelState, **settings: Unpack[UpdateSettings]) -> Ascent:
    """Compute the improved duals of :func:`update`; :func:`after` converts the result to a state.

    If the joint kernel fits into memory and labels have no cliques, results do not depend on which labels are
    trained together.
    """
    labels, tol, num_iters, seed = states.work(problems, state, **settings)
    boxes = _boxes(problems, state, labels)
    if not boxes:
        return Ascent(labels, np.empty((0, problems.num_instances)), 0)
    tols = dict(zip(boxes, np.maximum(tol, TRUSTED * state.gaps[labels]).tolist(), strict=True))
    random = np.random.default_rng((seed, state.num_iters))
    made = _solve(problems, boxes, tols, num_iters, random, JointKernel.whole(problems))
    duals = np.stack([box.coef for box in boxes.values()]) * problems.spins[labels]
    # Count at least one round: rounding may hide that a label is not solved.
    rounds = max(-(-max(made) // problems.num_instances), 1)
    return Ascent(labels, duals, rounds)


def after(problems: KernelLabelProblems, state: KernelState, found: Sequence[Ascent]) -> KernelState:
    """Return the state with improved duals, certified by one product with the kernel."""
    made = max(each.num_iters for each in found)
    if not made:
        return state
    duals = state.dual_coef.copy()
    for each in found:
        duals[each.labels] = each.dual_coef
    return _certified(problems, duals, state.num_iters + made, state.stage)


def _certified(
    problems: KernelLabelProblems, dual_coef: np.ndarray, num_iters: int, stage: range | None
) -> KernelState:
    """Return the state at given duals, by one product with the kernel."""
    weights = problems.weights(dual_coef)
    return _valued(problems, dual_coef, weights, problems.fields(weights), num_iters, stage)


def _valued(
    problems: KernelLabelProblems,
    dual_coef: np.ndarray,
    weights: np.ndarray,
    fields: np.ndarray,
    num_iters: int,
    stage: range | None,
) -> KernelState:
    """Return the state at given duals, weights and fields (instances, labels)."""
    half = 0.5 * (weights[: problems.num_instances] * fields).sum(0)
    primal = half + problems.weighed(problems.losses(fields))
    dual = problems.margin * dual_coef.sum(1) - half
    return KernelState(dual_coef, weights, primal, dual, num_iters, stage, fields=fields)


def _boxes(problems: KernelLabelProblems, state: KernelState, labels: np.ndarray) -> dict[int, Box]:
    """Return the duals of some labels by position, each with separate arrays."""
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
    """Solve each label (without a joint kernel, by parts in random order); return the steps of each label."""
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
            solve = kernels("dual.kernel_network").solve_label
            found = solve(own.of(label), boxes[label], tols[label], num_iters * size)
            made.append(found)

    share(list(zip(np.array_split(list(boxes), at_once), joints, strict=True)), work)
    return made
