"""Joint kernels of a belief network's labels in single precision; beyond the memory limit, in parts.

The joint kernels of two labels differ only by products of the spins that one of the labels sees. So a single
matrix is enough: it is changed from one label's kernel to the next.

If the matrix does not fit into memory, labels are solved among parts of the instances. Active instances are
those with a dual inside the box or a share of the gap; they are few. If their joint kernel fits, the label is
solved among them, otherwise (as at zero duals) among blocks of instances. The main cost of a round is to read
the kernel values with all instances, once for all labels.
"""

from __future__ import annotations

import math
from copy import copy

import numpy as np

from lmbm_torch.kernels.dual.records import Box
from lmbm_torch.kernels.installed import kernels
from lmbm_torch.memory import limit_bytes
from lmbm_torch.solvers.gram import CachedGram
from lmbm_torch.solvers.networks.kernel_problems import KernelLabelProblems

# Largest bytes of a joint kernel.
MEMORY = 2**30


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

    Computed values are kept for the next belief network if two matrices fit into memory: a copy takes a third
    of the time.
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
    """The joint kernel of some instances, for one label after another.

    Args:
        values: (instances, instances), the features' kernel, changed in place.
        index: the instances.
    """

    def __init__(self, problems: KernelLabelProblems, values: np.ndarray, index: np.ndarray | slice) -> None:
        self.values = values
        self._sees, self._scale = problems.sees(), problems.scale
        self._context = np.ascontiguousarray(problems.context[index].T, values.dtype)
        self._seen = np.zeros(len(self._context), bool)

    @classmethod
    def whole(cls, problems: KernelLabelProblems) -> JointKernel | None:
        """Return the joint kernel of all instances, or None beyond the memory limit."""
        return cls(problems, matrix(problems), slice(None)) if fits(problems) else None

    def copy(self) -> JointKernel:
        """Return a copy with separate values."""
        other = copy(self)
        other.values = self.values.copy()
        return other

    def among(self, index: np.ndarray) -> JointKernel:
        """Return the joint kernel of some of the instances."""
        other = copy(self)
        other.values, other._context = self.values[np.ix_(index, index)], self._context[:, index]
        return other

    def of(self, label: int) -> np.ndarray:
        """Return the values for the label at a position; valid until the next call."""
        sees = self._sees[:, label]
        (new,) = (sees != self._seen).nonzero()
        if len(new):
            scale = np.where(sees[new], 1.0, -1.0) * self._scale[new]
            kernels("dual.kernel_network").add_columns(self.values, self._context[new], scale)
        self._seen = sees
        return self.values


# Number of instances of a block, if the kernel of the active instances does not fit into memory.
BLOCK = 8192
# The active instances are chosen again when a label's gap has fallen to this share of the first gap.
ROUND_TARGET = 0.01


def solve_parts(
    problems: KernelLabelProblems,
    boxes: dict[int, Box],
    tols: dict[int, float],
    num_iters: int,
    random: np.random.Generator,
) -> int:
    """Solve each label among parts of the instances; return the number of rounds."""
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
    """Solve labels once among blocks of the active instances in turn, until few instances are active."""
    boxes = _wide(boxes)
    matters = np.zeros(problems.num_instances, bool)
    for box in boxes.values():
        matters[box.active()] = True
    # Random blocks mix all instances quickly; blocks in the order of gaps took ten times the rounds.
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
    """Select the labels with more active instances than fit into memory."""
    return {label: box for label, box in boxes.items() if len(box.active()) > most_instances()}


def _goal(box: Box, tol: float) -> float:
    """Return the gap at which a label's active instances are chosen again."""
    return max(ROUND_TARGET * _gap(box), 0.3 * tol * _primal(box))


def _solve_together(
    problems: KernelLabelProblems, boxes: dict[int, Box], index: np.ndarray, goals: dict[int, float]
) -> np.ndarray:
    """Solve labels among some instances, each to a given gap; return the changes of β, (rows, labels)."""
    joint = JointKernel(problems, problems.among(index), index)
    changes = np.zeros((len(index), problems.num_labels))
    for label, goal in goals.items():
        changes[:, label] = _solve_among(joint.of(label), boxes[label], index, goal)
    return changes


def _solve_among(joint: np.ndarray, box: Box, index: np.ndarray, goal: float) -> np.ndarray:
    some = Box(*(values[index] for values in box))
    # Relative to the primal value of all instances; relative to the block's, no step would be made.
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
