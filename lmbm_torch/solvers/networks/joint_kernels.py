"""The joint kernel of a network's labels, in single precision, turned from label to label.

The joint kernels of two labels differ by the products of the spins that one of them does not see: one matrix
holds the one after the other.
"""

from __future__ import annotations

import math
from copy import copy

import numpy as np

from lmbm_torch.kernels.installed import kernels
from lmbm_torch.memory import limit_bytes
from lmbm_torch.solvers.gram import CachedGram
from lmbm_torch.solvers.networks.kernel_problems import KernelLabelProblems

BACKEND = ("dual.kernel_network", "training of kernel networks")

# Bytes that a joint kernel takes at most.
MEMORY = 2**30


def most_instances() -> int:
    """Instances whose joint kernel fits into memory."""
    return max(math.isqrt(limit_bytes(MEMORY) // 4), 1)


def fits(problems: KernelLabelProblems) -> bool:
    """Whether the joint kernel of all instances fits into memory."""
    return is_within_memory(1, problems.num_instances)


def is_within_memory(matrices: int, instances: int) -> bool:
    """Whether so many matrices of single precision, (instances, instances) each, fit into memory."""
    return matrices * instances**2 <= most_instances() ** 2


def matrix(problems: KernelLabelProblems) -> np.ndarray:
    """The features' part of the kernel, (instances, instances), in single precision.

    Values that are evaluated are kept for the next network where two such matrices fit into memory: to copy
    them takes a third of the time.
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
    """The joint kernel of some instances, of one label after the other.

    Args:
        values: (instances, instances) of the features' kernel, changed in place.
        index: the instances.
    """

    def __init__(self, problems: KernelLabelProblems, values: np.ndarray, index: np.ndarray | slice) -> None:
        self.values = values
        self._sees, self._scale = problems.sees(), problems.scale
        self._context = np.ascontiguousarray(problems.context[index].T, values.dtype)
        self._seen = np.zeros(len(self._context), bool)

    @classmethod
    def whole(cls, problems: KernelLabelProblems) -> JointKernel | None:
        """That of all instances, None if it does not fit into memory."""
        return cls(problems, matrix(problems), slice(None)) if fits(problems) else None

    def copy(self) -> JointKernel:
        """Another one with values of its own."""
        other = copy(self)
        other.values = self.values.copy()
        return other

    def among(self, index: np.ndarray) -> JointKernel:
        """That of some of its instances."""
        other = copy(self)
        other.values, other._context = self.values[np.ix_(index, index)], self._context[:, index]
        return other

    def of(self, label: int) -> np.ndarray:
        """The values for the label at this position; valid until the next call."""
        sees = self._sees[:, label]
        (new,) = (sees != self._seen).nonzero()
        if len(new):
            scale = np.where(sees[new], 1.0, -1.0) * self._scale[new]
            kernels(*BACKEND).add_columns(self.values, self._context[new], scale)
        self._seen = sees
        return self.values
