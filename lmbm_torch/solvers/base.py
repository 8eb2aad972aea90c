"""The solvers' contract: ``init → update → run``, an immutable state, and a gap that is always defined."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class SolverState:
    """Where a solver stands: feasible duals, the weights they make, and the values of both problems.

    Args:
        dual_coef: (labels, instances).
        weights: (columns, labels).
        primal: (labels,), each label's objective at ``weights``.
        dual: (labels,), each label's dual value at ``dual_coef``; never above the optimum.
        num_passes: passes made so far; with the seed it determines the random numbers of the next one, so a
            state that is stored and taken up again goes on as if it had never been put down.
    """

    dual_coef: np.ndarray
    weights: np.ndarray
    primal: np.ndarray
    dual: np.ndarray
    num_passes: int

    @property
    def gaps(self) -> np.ndarray:
        """Each label's duality gap relative to its primal value, (labels,)."""
        return relative_gap(self.primal - self.dual, self.primal)

    @property
    def gap(self) -> float:
        """The duality gap of all labels together, relative to the primal value."""
        return float(relative_gap(self.primal.sum() - self.dual.sum(), self.primal.sum()))


def relative_gap(difference: np.ndarray | float, value: np.ndarray | float) -> np.ndarray:
    """A difference of objectives relative to ``value``."""
    # A problem without losses (all weights zero) has primal = dual = 0, and no gap.
    return np.maximum(difference, 0.0) / np.maximum(value, np.finfo(np.float64).tiny)


Callback = Callable[[SolverState], None]
"""Called after every update with the state: for progress, logs and checkpoints; may raise to stop."""
