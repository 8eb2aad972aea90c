"""What networks with the same kernel and instances share: kernel values, and the solutions of each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from lmbm_torch.estimators.kernels import Kernel
from lmbm_torch.models import SigmoidBeliefNetwork
from lmbm_torch.solvers.gram import Gram
from lmbm_torch.solvers.networks import kernel_dual_coordinate, kernel_splitting
from lmbm_torch.solvers.networks.kernel_dual_coordinate import Expansions, KernelState
from lmbm_torch.solvers.networks.kernel_problems import KernelLabelProblems


class Solved(NamedTuple):
    """A network that is solved."""

    model: SigmoidBeliefNetwork
    problems: KernelLabelProblems
    state: KernelState

    def expansions(self) -> Expansions:
        """Its solution, by label."""
        return kernel_dual_coordinate.solution(self.problems, self.state)

    def in_order(self, ordering: np.ndarray) -> tuple[SigmoidBeliefNetwork, KernelLabelProblems]:
        """Model and problems of a network that differs in its ordering (labels,) alone."""
        return self.model.in_order(ordering), self.problems.in_order(ordering)


@dataclass(frozen=True, eq=False)
class SharedKernel:
    """The shared state of networks with the same kernel and instances.

    Args:
        kernel: as it was resolved for these instances.
        gram: its values between them.
        solutions: from which further networks start.
        last: the network that was solved last.
        template: a network from which further ones differ in their ordering alone, if it has no cliques.
    """

    kernel: Kernel
    gram: Gram
    solutions: tuple[Expansions, ...] = ()
    last: Solved | None = None
    template: Solved | None = None

    def and_also(self, solutions: Sequence[Expansions]) -> SharedKernel:
        """With further solutions, each in place of that with the same parents."""
        new = {each.parents.tobytes() for each in solutions}
        others = [one for one in self.solutions if one.parents.tobytes() not in new]
        return replace(self, solutions=(*others, *solutions))

    def after(self, solved: Solved) -> SharedKernel:
        """With the solution of a network."""
        return replace(self.and_also([solved.expansions()]), last=solved)

    def before(self, orderings: Sequence[np.ndarray], tol: float) -> SharedKernel:
        """For networks that differ from the last one in their ordering alone, with starts where these pay.

        Args:
            orderings: (labels,) each.
            tol: relative gap of the labels.
        """
        last = self.last
        if last is None or last.problems.cliques:
            return self
        known = replace(self, template=last)
        if not kernel_splitting.pays(last.problems, last.state, len(orderings)):
            return known
        return known.and_also(kernel_splitting.starts(last.problems, orderings, [last.expansions()], tol=tol))
