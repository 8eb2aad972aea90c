"""Rounds on parts of joint kernels that do not fit into memory.

A label's instances that matter, those strictly inside their box or with a share of the gap, are few. Where
their joint kernel fits into memory the label is solved among them. Otherwise, as at zero duals, it is solved
a block of instances at a time. Kernel values with all instances are what a round costs: they are read once
for all labels, to tell all instances of what changed.
"""

from __future__ import annotations

import numpy as np

from lmbm_torch.backends.dual.plain.boxes import Box, shares
from lmbm_torch.backends.dual.plain.kernel_network import NEGLIGIBLE
from lmbm_torch.backends.installed import kernels
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
    order: np.ndarray,
) -> int:
    """Solve each label, in the ``order`` given where it visits blocks; the rounds made."""
    for made in range(num_iters):
        left = [label for label, box in boxes.items() if _gap(box) > tols[label] * _primal(box)]
        if not left:
            return made
        _visit_blocks(problems, {label: boxes[label] for label in left}, order)
        changes = np.zeros((problems.num_instances, problems.num_labels))
        for label in left:
            index = _active(boxes[label])
            if len(index) <= most_instances():
                changes[index, label] = _solve_active(problems, label, boxes[label], index, tols[label])
        _tell(problems, boxes, changes)
    return num_iters


def _visit_blocks(problems: KernelLabelProblems, boxes: dict[int, Box], order: np.ndarray) -> None:
    """Solve labels among a block of the instances that matter after the other, once, until few matter."""
    step = min(BLOCK, most_instances())
    boxes = _wide(boxes)
    weight = np.zeros(problems.num_instances)
    matters = np.zeros(problems.num_instances, bool)
    for box in boxes.values():
        matters[_active(box)] = True
        weight += shares(box)
    order = order[matters[order]]
    order = order[np.argsort(-weight[order], kind="stable")]
    for first in range(0, len(order), step):
        index = np.sort(order[first : first + step])
        joint = JointKernel(problems, problems.among(index), index)
        changes = np.zeros((problems.num_instances, problems.num_labels))
        for label, box in boxes.items():
            changes[index, label] = _solve_among(joint.of(label), box, index, ROUND_TARGET)
        _tell(problems, boxes, changes)
        boxes = _wide(boxes)
        if not boxes:
            return


def _wide(boxes: dict[int, Box]) -> dict[int, Box]:
    """Those to which more instances matter than can be solved together."""
    return {label: box for label, box in boxes.items() if len(_active(box)) > most_instances()}


def _solve_active(
    problems: KernelLabelProblems, label: int, box: Box, index: np.ndarray, tol: float
) -> np.ndarray:
    """Solve one label among the instances that matter; how their β change."""
    joint = JointKernel(problems, problems.among(index), index)
    return _solve_among(joint.of(label), box, index, max(ROUND_TARGET * _gap(box) / _primal(box), 0.3 * tol))


def _solve_among(joint: np.ndarray, box: Box, index: np.ndarray, tol: float) -> np.ndarray:
    """Solve one label's problem among some instances; how their β change."""
    some = Box(*(values[index] for values in box))
    kernels(*BACKEND).solve_label(joint, some, tol, 10 * len(index))
    change = some.coef - box.coef[index]
    box.coef[index] = some.coef
    return change


def _tell(problems: KernelLabelProblems, boxes: dict[int, Box], changes: np.ndarray) -> None:
    """Add what all instances' fields gain by changes of β (instances, labels)."""
    gained = problems.expansions(changes) + problems.contextual(changes)
    for label, box in boxes.items():
        box.gradient[:] += gained[:, label]


def _active(box: Box) -> np.ndarray:
    """The instances that matter: strictly inside their box, or with a share of the gap."""
    parts = shares(box)
    inside = (box.coef > box.lower) & (box.coef < box.upper)
    return np.flatnonzero(inside | (parts > NEGLIGIBLE * parts.mean()))


def _gap(box: Box) -> float:
    return float(shares(box).sum())


def _primal(box: Box) -> float:
    return _gap(box) + 0.5 * float(box.coef @ (box.linear - box.gradient))
