"""The solvers' contract (``init``, ``update``, states with a duality gap) and the driver :func:`run`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import numpy as np

from lmbm_torch.checks import check_count, check_positive
from lmbm_torch.kernels.threads import single_threaded

TINY = float(np.finfo(np.float64).tiny)


class Certified:
    """A primal value and a dual value, never above the primal minimum; arrays for several problems."""

    primal: Any
    dual: Any

    @property
    def gap(self) -> float:
        """Return the duality gap of all problems together, relative to the primal value."""
        primal = np.sum(self.primal)
        return float(relative_gap(primal - np.sum(self.dual), primal))


class SolverState(Certified):
    """Base class for the immutable records of a solver's state after an iteration.

    Attributes:
        num_iters: iterations made so far. The seed and ``num_iters`` determine the random numbers of the next
            iteration, so a run resumed from a stored state gives the same result as an uninterrupted run.
    """

    num_iters: int

    def solved(self, tol: float) -> bool:
        """Return whether the gap is at most ``tol``."""
        return self.gap <= tol


def relative_gap(difference: np.ndarray | float, value: np.ndarray | float) -> np.ndarray:
    """Return the absolute value of ``difference`` (primal minus dual value), divided by ``value``.

    The absolute value matters: only infeasible dual variables give a dual value above the primal value, and
    the negative difference must not pass for a closed gap.
    """
    # Divide by at least TINY: if all losses have weight 0, both values are 0, and the gap is 0, not NaN.
    return np.abs(difference) / np.maximum(value, TINY)


State = TypeVar("State", bound=SolverState)
State_co = TypeVar("State_co", bound=SolverState, covariant=True)


class Solver(Protocol[State_co]):
    """A module with ``init(problem, …) -> state`` and ``update(problem, state, *, …) -> state``.

    ``update`` makes one iteration. Two further functions are optional:

    * ``limits(state, tol, left, watched)`` returns arguments for an ``update`` of several iterations:
      ``left`` is the number allowed, ``watched`` whether a callback waits for the state.
    * ``next_stage(problem, state)`` is called at ``tol`` or ``max_iter``. It returns the problem and first
    state of the next stage, or None and the final state.
    """

    @property
    def init(self) -> Callable[..., State_co]: ...

    @property
    def update(self) -> Callable[..., State_co]: ...


@single_threaded()
def run(
    solver: Solver[State],
    problem: Any,
    *,
    tol: float = 1e-3,
    max_iter: int = 1000,
    start: State | None = None,
    callback: Callable[[State], None] | None = None,
    progress: Callable[[State], None] | None = None,
    **settings: Any,
) -> State:
    """Repeat ``update`` until ``state.gap`` is at most ``tol``.

    The gap is

    * with dual variables: the duality gap relative to the primal value. For the label problems of a belief
      network, the gap of each label must be at most ``tol``; for Pegasos, the gap of all labels together;
    * for :mod:`~.structural.lbfgs`: the larger of two numbers, the gradient's norm relative to the norm at
      zero weights, and the gain of the last step relative to the objective;
    * for :mod:`~.chains.iterative_scaling`: Σ |observed − expected counts| / Σ observed counts;
    * for :mod:`~.chains.expectation_maximisation`: the gain of the last step, relative to the objective.

    Args:
        solver: a module of this package, such as :mod:`~.networks.dual_coordinate`.
        problem: the problem for the solver's ``init``.
        tol: gap at which to stop.
        max_iter: the largest number of iterations; ``state.gap`` is the gap reached. If missing labels are
            imputed between stages, the limit holds for each stage.
        start: state to continue from, by default ``solver.init(problem)``. The duals of a similar problem,
            for example with a smaller C, are a good start: ``start=solver.init(problem, duals)``.
        callback: function of the state, called after every update, for logs and checkpoints; an exception
            stops the run. With a callback, an update of most solvers makes one iteration.
        progress: function of the state, called at the first state and after each update; unlike ``callback``,
            it does not shorten updates.
        settings: further arguments of ``solver.update``, such as ``seed``.

    Raises:
        ValueError: ``tol`` is not above zero, ``max_iter`` is below one, or ``init`` or ``update`` refuses an
            argument.

    Examples:
        >>> import numpy as np
        >>> from lmbm_torch.solvers.base import run
        >>> from lmbm_torch.solvers.networks import dual_coordinate
        >>> from lmbm_torch.solvers.networks.problems import LabelProblems
        >>> problems = LabelProblems.from_labels(np.eye(4), np.eye(4)[:, :2])
        >>> run(dual_coordinate, problems, tol=1e-4).gap <= 1e-4
        True
    """
    check_positive("tol", tol)
    check_count("max_iter", max_iter)
    state = solver.init(problem) if start is None else start
    if progress is not None:
        progress(state)
    next_stage = getattr(solver, "next_stage", lambda _, last: (None, last))
    while problem is not None:
        end = state.num_iters + max_iter
        while not state.solved(tol) and state.num_iters < end:
            before, left = state, end - state.num_iters
            state = step(solver, problem, state, tol=tol, left=left, watched=callback is not None, **settings)
            if state is before:
                # An update that returns the same state cannot make progress, so the stage ends.
                break
            for tell in (callback, progress):
                if tell is not None:
                    tell(state)
        problem, state = next_stage(problem, state)
    return state


def step(
    solver: Solver[State],
    problem: Any,
    state: State,
    *,
    tol: float,
    left: int = 1,
    watched: bool = True,
    **settings: Any,
) -> State:
    """Run one ``update`` of at most ``left`` iterations, and return the new state."""
    limits = getattr(solver, "limits", lambda *_: {})
    return solver.update(problem, state, **limits(state, tol, left, watched), **settings)


def at_most(iterations: int) -> Callable[..., dict[str, Any]]:
    """Return a ``limits`` function that allows ``iterations`` iterations before the gap is computed again."""

    def limits(state: SolverState, tol: float, left: int, watched: bool) -> dict[str, Any]:
        return {"num_iters": min(iterations, left)}

    return limits
