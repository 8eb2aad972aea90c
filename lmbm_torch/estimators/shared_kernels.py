"""What networks with the same kernel and instances share: kernel values, and the solutions of each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from lmbm_torch.estimators.kernels import Kernel
from lmbm_torch.solvers.gram import Gram
from lmbm_torch.solvers.networks import kernel_dual_coordinate, kernel_splitting
from lmbm_torch.solvers.networks.kernel_dual_coordinate import Expansions, KernelState
from lmbm_torch.solvers.networks.kernel_problems import KernelLabelProblems


class _Solved(NamedTuple):
    """The network that was solved last."""

    problems: KernelLabelProblems
    state: KernelState

    def expansions(self) -> Expansions:
        coef = self.state.weights[: self.problems.num_instances]
        return kernel_dual_coordinate.expansions(self.problems, coef, self.state.fields)


@dataclass(frozen=True, eq=False)
class SharedKernel:
    """The shared state of networks with the same kernel and instances.

    Args:
        kernel: as it was resolved for these instances.
        gram: its values between them.
        solutions: from which further networks start.
        last: the network that was solved last.
    """

    kernel: Kernel
    gram: Gram
    solutions: tuple[Expansions, ...] = ()
    last: _Solved | None = None

    def and_also(self, solutions: Sequence[Expansions]) -> SharedKernel:
        """With further solutions, each in place of that with the same parents."""
        others = [
            one for one in self.solutions if all((one.parents != each.parents).any() for each in solutions)
        ]
        return replace(self, solutions=(*others, *solutions))

    def after(self, problems: KernelLabelProblems, state: KernelState) -> SharedKernel:
        """With the solution of a network."""
        solved = _Solved(problems, state)
        return replace(self.and_also([solved.expansions()]), last=solved)

    def before(self, orderings: Sequence[np.ndarray], tol: float) -> SharedKernel:
        """With starts of networks that differ from the last one in their ordering alone, where these pay.

        Args:
            orderings: (labels,) each.
            tol: relative gap of the labels.
        """
        if self.last is None or not kernel_splitting.pays(*self.last, len(orderings)):
            return self
        found = kernel_splitting.starts(self.last.problems, orderings, [self.last.expansions()], tol=tol)
        return self.and_also(found)
