"""Rounds on parts of joint kernels that do not fit into memory.

A label's instances that matter, those strictly inside their box or with a share of the gap, are few. Where
their joint kernel fits into memory the label is solved among them. Otherwise, as at zero duals, it is solved
a block of instances at a time. Kernel values with all instances are what a round costs: they are read once
for all labels, to tell all instances of what changed.
"""

from __future__ import annotations

import numpy as np

from lmbm_torch.kernels.dual.plain.boxes import Box, shares
from lmbm_torch.kernels.dual.plain.kernel_network import active
from lmbm_torch.kernels.installed import kernels
from lmbm_torch.solvers.networks.joint_kernels import BACKEND, JointKernel, most_instances
from lmbm_torch.solvers.networks.kernel_problems import KernelLabelProblems

# Instances that are visited together where those that matter are too many.
BLOCK = 8192
# Share of a label's gap at which the instances that matter are chosen anew.
ROUND_TARGET = 0.01


def solve_parts(
    problems: KernelLabelProblems,
    boxes: dict[int, Box],
    tols: dict[int, float],
    num_iters: int,
    random: np.random.Generator,
) -> int:
    """Solve each label, in random order where it visits blocks; the rounds made."""
    for made in range(num_iters):
        left = [label for label, box in boxes.items() if _gap(box) > tols[label] * _primal(box)]
        if not left:
            return made
        _visit_blocks(problems, {label: boxes[label] for label in left}, tols, random)
        changes = np.zeros((problems.num_instances, problems.num_labels))
        for label in left:
            index = _active(boxes[label])
            if len(index) <= most_instances():
                goals = {label: _goal(boxes[label], tols[label])}
                changes[index] += _solve_together(problems, boxes, index, goals)
        _tell(problems, boxes, changes)
    return num_iters


def _visit_blocks(
    problems: KernelLabelProblems, boxes: dict[int, Box], tols: dict[int, float], random: np.random.Generator
) -> None:
    """Solve labels among a block of the instances that matter after the other, once, until few matter."""
    boxes = _wide(boxes)
    matters = np.zeros(problems.num_instances, bool)
    for box in boxes.values():
        matters[_active(box)] = True
    # Drawn anew, a block soon meets all others: in the order of their gaps they took ten times the rounds.
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
    """Those to which more instances matter than can be solved together."""
    return {label: box for label, box in boxes.items() if len(_active(box)) > most_instances()}


def _goal(box: Box, tol: float) -> float:
    """The gap at which the instances that matter to a label are chosen anew."""
    return max(ROUND_TARGET * _gap(box), 0.3 * tol * _primal(box))


def _solve_together(
    problems: KernelLabelProblems, boxes: dict[int, Box], index: np.ndarray, goals: dict[int, float]
) -> np.ndarray:
    """Solve labels among some instances, each to a gap of these; how their β change, (rows, labels)."""
    joint = JointKernel(problems, problems.among(index), index)
    changes = np.zeros((len(index), problems.num_labels))
    for label, goal in goals.items():
        changes[:, label] = _solve_among(joint.of(label), boxes[label], index, goal)
    return changes


def _solve_among(joint: np.ndarray, box: Box, index: np.ndarray, goal: float) -> np.ndarray:
    some = Box(*(values[index] for values in box))
    # A gap relative to the primal value of these instances alone would leave blocks as they are for ever.
    primal = _primal(some)
    if primal > 0:
        kernels(*BACKEND).solve_label(joint, some, goal / primal, 10 * len(index))
    change = some.coef - box.coef[index]
    box.coef[index] = some.coef
    return change


def _tell(problems: KernelLabelProblems, boxes: dict[int, Box], changes: np.ndarray) -> None:
    """Add what all instances' fields gain by changes of β (instances, labels)."""
    gained = problems.expansions(changes) + problems.contextual(changes)
    for label, box in boxes.items():
        box.gradient[:] += gained[:, label]


def _active(box: Box) -> np.ndarray:
    return active(box, shares(box))


def _gap(box: Box) -> float:
    return float(shares(box).sum())


def _primal(box: Box) -> float:
    return _gap(box) + 0.5 * float(box.coef @ (box.linear - box.gradient))
