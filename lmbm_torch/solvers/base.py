"""The solvers' contract: ``init → update → run``, an immutable state, and a gap that is always defined."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np

from lmbm_torch.checks import check_count, check_positive


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
    """How far apart two objectives are, relative to ``value``.

    Whichever is the larger: a dual value above the primal one is that of no feasible duals, and must not pass
    for a gap that is closed.
    """
    # A problem without losses (all weights zero) has primal = dual = 0, and no gap.
    return np.abs(difference) / np.maximum(value, np.finfo(np.float64).tiny)


Callback = Callable[[SolverState], None]
"""Called after every update with the state: for progress, logs and checkpoints; may raise to stop."""


class Certified(Protocol):
    """What every solver's state tells."""

    @property
    def gap(self) -> float: ...

    @property
    def num_passes(self) -> int: ...


State = TypeVar("State", bound=Certified)


def run_to_gap(
    start: Callable[[], State],
    step: Callable[[State], State],
    *,
    tol: float,
    max_passes: int,
    callback: Callable[[State], None] | None,
) -> State:
    """Step from the start until the relative gap is ``tol``, or ``max_passes`` are made.

    Args:
        callback: called after every step; may raise to stop.

    Raises:
        ValueError: ``tol`` not above zero, ``max_passes`` below one.
    """
    check_positive("tol", tol)
    check_count("max_passes", max_passes)
    state = start()
    while state.gap > tol and state.num_passes < max_passes:
        state = step(state)
        if callback is not None:
            callback(state)
    return state
