"""Dual ascent by pairs of instances for kernel label problems, to a certified duality gap.

A label's joint kernel is the kernel of the features plus products of the spins of the label's parents. Only
the products differ between labels, so a single matrix in single precision is changed from each label's joint
kernel to the next. Fields (scores) in double precision start the steps and certify the result, so single
precision costs at most one more update.

If the matrix does not fit into memory, labels are solved on subsets of the instances. An instance is active
if its dual is strictly between the bounds or it contributes to the gap; few instances are active. If the
joint kernel of the active instances fits into memory, the label is solved on them, otherwise (as at zero
duals) on blocks of instances. The main cost of a round is to read the kernel values with all instances, once
for all labels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Unpack

import numpy as np
import torch

from lmbm_torch.kernels.dual.records import Box
from lmbm_torch.kernels.installed import kernels
from lmbm_torch.kernels.threads import share
from lmbm_torch.memory import limit_bytes
from lmbm_torch.solvers.gram import CachedGram
from lmbm_torch.solvers.networks.kernel_problems import KernelLabelProblems
from lmbm_torch.solvers.networks.problems import NetworkState, UpdateSettings, following_stage, work
from lmbm_torch.solvers.networks.problems import limits as limits

# Largest number of bytes of a joint kernel in memory.
MEMORY = 2**30


# Number of instances of a block, if the kernel of the active instances does not fit into memory.
BLOCK = 8192
# Active instances are chosen again once a label's gap has fallen to this share of the gap at the choice.
ROUND_TARGET = 0.01
# Fields are computed again once the gap has fallen to this share: single precision allows no smaller gap.
TRUSTED = 1e-4


def most_instances() -> int:
    """Return the largest number of instances whose joint kernel fits into memory."""
    return max(math.isqrt(limit_bytes(MEMORY) // 4), 1)


def fits(problems: KernelLabelProblems) -> bool:
    """Return whether the joint kernel of all instances fits into memory."""
    return is_within_memory(1, problems.num_instances)


def is_within_memory(matrices: int, instances: int) -> bool:
    """Return whether ``matrices`` matrices (instances, instances) of single precision fit into memory."""
    return matrices * instances**2 <= most_instances() ** 2


def matrix(problems: KernelLabelProblems) -> np.ndarray:
    """Return the features' part of the kernel, (instances, instances), in single precision.

    If two matrices fit into memory, the values are kept for the next belief network: copying them takes a
    third of the time of computing them.
    """
    size, gram = problems.num_instances, problems.gram
    if isinstance(gram, CachedGram) and gram.single is not None:
        return gram.single.copy()
    values = np.empty((size, size), np.float32)
    for first, above in problems.triangle():
        last = first + len(above)
        values[first:last, first:] = above
        values[last:, first:last] = above[:, len(above) :].T
    if isinstance(gram, CachedGram) and is_within_memory(2, size):
        gram.single = values.copy()
    return values


class JointKernel:
    """The joint kernel matrix of some instances, changed in place from one label to the next.

    Args:
        values: (instances, instances), the kernel of the features, which :meth:`of` overwrites.
        index: the indices of the instances.
    """

    def __init__(self, problems: KernelLabelProblems, values: np.ndarray, index: np.ndarray | slice) -> None:
        self.values = values
        self._sees, self._scale = problems.sees, problems.scale
        self._context = np.ascontiguousarray(problems.context[index].T, values.dtype)
        self._seen = np.zeros(len(self._context), bool)

    @classmethod
    def whole(cls, problems: KernelLabelProblems) -> JointKernel | None:
        """Return the joint kernel of all instances, or None if the matrix does not fit into memory."""
        return cls(problems, matrix(problems), slice(None)) if fits(problems) else None

    def copy(self) -> JointKernel:
        """Return a copy with a separate kernel matrix."""
        other = copy(self)
        other.values = self.values.copy()
        return other

    def among(self, index: np.ndarray) -> JointKernel:
        """Return the joint kernel of some of the instances."""
        other = copy(self)
        other.values, other._context = self.values[np.ix_(index, index)], self._context[:, index]
        return other

    def of(self, label: int) -> np.ndarray:
        """Return the joint kernel of the label at a position; the next call overwrites the matrix."""
        sees = self._sees[:, label]
        (new,) = (sees != self._seen).nonzero()
        if len(new):
            scale = np.where(sees[new], 1.0, -1.0) * self._scale[new]
            kernels("dual.kernel_network").add_columns(self.values, self._context[new], scale)
        self._seen = sees
        return self.values


def solve_parts(
    problems: KernelLabelProblems,
    boxes: dict[int, Box],
    tols: dict[int, float],
    num_iters: int,
    random: np.random.Generator,
) -> int:
    """Solve each label on subsets of the instances; return the number of rounds."""
    for made in range(num_iters):
        left = [label for label, box in boxes.items() if _gap(box) > tols[label] * _primal(box)]
        if not left:
            return made
        _visit_blocks(problems, {label: boxes[label] for label in left}, tols, random)
        changes = np.zeros((problems.num_instances, problems.num_labels))
        for label in left:
            index = boxes[label].active()
            if len(index) <= most_instances():
                goals = {label: _goal(boxes[label], tols[label])}
                changes[index] += _solve_together(problems, boxes, index, goals)
        _tell(problems, boxes, changes)
    return num_iters


def _visit_blocks(
    problems: KernelLabelProblems, boxes: dict[int, Box], tols: dict[int, float], random: np.random.Generator
) -> None:
    """Solve labels on each block of active instances in turn, until the active instances fit into memory."""
    boxes = _wide(boxes)
    matters = np.zeros(problems.num_instances, bool)
    for box in boxes.values():
        matters[box.active()] = True
    # Draw the blocks at random: blocks in the order of the instances' gaps needed ten times as many rounds.
    order = random.permutation(np.flatnonzero(matters))
    step = min(BLOCK, most_instances())
    for first in range(0, len(order), step):
        if not boxes:
            return
        index = np.sort(order[first : first + step])
        share = len(index) / len(order)
        goals = {label: share * _goal(box, tols[label]) for label, box in boxes.items()}
        changes = np.zeros((problems.num_instances, problems.num_labels))
        changes[index] = _solve_together(problems, boxes, index, goals)
        _tell(problems, boxes, changes)
        boxes = _wide(boxes)


def _wide(boxes: dict[int, Box]) -> dict[int, Box]:
    """Select the labels whose active instances have a joint kernel too large for memory."""
    return {label: box for label, box in boxes.items() if len(box.active()) > most_instances()}


def _goal(box: Box, tol: float) -> float:
    """Return the gap at which a label's active instances are chosen again."""
    return max(ROUND_TARGET * _gap(box), 0.3 * tol * _primal(box))


def _solve_together(
    problems: KernelLabelProblems, boxes: dict[int, Box], index: np.ndarray, goals: dict[int, float]
) -> np.ndarray:
    """Solve labels on some instances, each to a given gap; return the changes of β, (rows, labels)."""
    joint = JointKernel(problems, problems.among(index), index)
    changes = np.zeros((len(index), problems.num_labels))
    for label, goal in goals.items():
        changes[:, label] = _solve_among(joint.of(label), boxes[label], index, goal)
    return changes


def _solve_among(joint: np.ndarray, box: Box, index: np.ndarray, goal: float) -> np.ndarray:
    some = Box(*(values[index] for values in box))
    # The solver's tolerance is relative to the primal value of the block, so divide the absolute goal by it.
    primal = _primal(some)
    if primal > 0:
        kernels("dual.kernel_network").solve_label(joint, some, goal / primal, 10 * len(index))
    change = some.coef - box.coef[index]
    box.coef[index] = some.coef
    return change


def _tell(problems: KernelLabelProblems, boxes: dict[int, Box], changes: np.ndarray) -> None:
    """Add the effect of changes of β (instances, labels) to the fields of all instances."""
    gained = problems.expansions(changes) + problems.contextual(changes)
    for label, box in boxes.items():
        box.gradient[:] += gained[:, label]


def _gap(box: Box) -> float:
    return float(box.shares().sum())


def _primal(box: Box) -> float:
    return _gap(box) + 0.5 * float(box.coef @ (box.linear - box.gradient))


@dataclass(frozen=True, kw_only=True)
class KernelState(NetworkState):
    """The state of a network's problems, with the labels' fields.

    Args:
        fields: the fields (scores) z at ``weights``, (instances, labels).
    """

    fields: np.ndarray


def init(problems: KernelLabelProblems, dual_coef: np.ndarray | None = None) -> KernelState:
    """Return the state at ``dual_coef`` (labels, instances), by default at zero.

    Raises:
        ValueError: the duals have a wrong shape, or are outside the box [0, C_l].
    """
    return _certified(problems, problems.feasible(dual_coef), 0, next(problems.stages(), None))


class Expansions(NamedTuple):
    """A solution from which training of problems with the same kernel values can start; labels by index.

    Args:
        dual_coef: the dual variables, (labels, instances).
        fields: Σ_j α_jk s_jk k(x_j, x_l), (instances, labels), without the part of the context.
        parents: boolean (labels, labels); row k marks the parents of label k.
    """

    dual_coef: np.ndarray
    fields: np.ndarray
    parents: np.ndarray

    @classmethod
    def of(cls, problems: KernelLabelProblems, dual_coef: np.ndarray, fields: np.ndarray) -> Expansions:
        """Convert duals and fields from positions in the ordering to the indices of labels."""
        by_label = np.argsort(problems.ordering)
        return cls(dual_coef[by_label], fields[:, by_label], problems.parents)


def start(problems: KernelLabelProblems, known: Sequence[Expansions]) -> KernelState:
    """Return the state at the duals of known solutions, made feasible, with values from stored fields.

    Each label starts from the solution with the most similar parents; at ties, from the last solution.
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
    """Convert a state to a start for other problems with the same kernel values."""
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

    The gaps at which training stops are not certified: the fields carry the round-off of the steps. If the
    joint kernel fits into memory, results do not depend on which labels are trained together.

    Args:
        problems: problems of labels without parents.
        folds: disjoint sets of instances that together contain all instances.
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
    """Train by ``solve`` on all instances but ``fold``; return the fields of the fold, (fold, labels).

    The kernel of the remaining instances is copied once for all labels: steps on the whole matrix would also
    read the held-out columns.
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
    """Impute missing labels between stages, see :func:`~lmbm_torch.solvers.networks.problems.next_stage`."""
    following = following_stage(problems, state)
    if following is None:
        return None, state
    completed = problems.impute(following[0] - 1, state.weights)
    return completed, _certified(completed, state.dual_coef, state.num_iters, following)


class Ascent(NamedTuple):
    """Improved dual variables of some labels.

    Args:
        labels: the labels' positions in the ordering.
        dual_coef: the dual variables, (labels, instances).
        num_iters: the number of rounds made.
    """

    labels: np.ndarray
    dual_coef: np.ndarray
    num_iters: int


def update(
    problems: KernelLabelProblems, state: KernelState, **settings: Unpack[UpdateSettings]
) -> KernelState:
    """Make up to ``num_iters`` rounds for the labels with a relative gap above ``tol``.

    A round makes as many steps as there are instances; if the joint kernel does not fit into memory, a round
    solves each label on the active instances once.

    Args:
        settings: see :class:`~lmbm_torch.solvers.networks.problems.UpdateSettings`.

    Raises:
        ValueError: the state does not fit the problems, or positions are unknown.
    """
    return after(problems, state, [ascent(problems, state, **settings)])


def ascent(problems: KernelLabelProblems, state: KernelState, **settings: Unpack[UpdateSettings]) -> Ascent:
    """Compute the improved duals of :func:`update`; :func:`after` converts the result to a state.

    If the joint kernel fits into memory and labels have no cliques, results do not depend on which labels are
    trained together.
    """
    labels, tol, num_iters, seed = work(problems, state, **settings)
    boxes = _boxes(problems, state, labels)
    if not boxes:
        return Ascent(labels, np.empty((0, problems.num_instances)), 0)
    tols = dict(zip(boxes, np.maximum(tol, TRUSTED * state.gaps[labels]).tolist(), strict=True))
    random = np.random.default_rng((seed, state.num_iters))
    made = _solve(problems, boxes, tols, num_iters, random, JointKernel.whole(problems))
    duals = np.stack([box.coef for box in boxes.values()]) * problems.spins[labels]
    # Report at least one round: in single precision, an unsolved label may look solved before the first step.
    rounds = max(-(-max(made) // problems.num_instances), 1)
    return Ascent(labels, duals, rounds)


def after(problems: KernelLabelProblems, state: KernelState, found: Sequence[Ascent]) -> KernelState:
    """Return the state with improved duals, and values computed anew by one product with the kernel."""
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
    """Return for each of ``labels``, by position, the duals, bounds and gradient as separate arrays."""
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
    """Solve each label (without a joint kernel, on subsets of instances); return the steps of each label."""
    size = problems.num_instances
    if joint is None:
        return [size * solve_parts(problems, boxes, tols, num_iters, random)] * len(boxes)
    sees = problems.sees[:, list(boxes)]
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
