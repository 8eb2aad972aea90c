"""The solvers' contract, ``init`` and ``update`` with states that know their gap, and the driver ``run``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import numpy as np

from lmbm_torch.checks import check_count, check_positive
from lmbm_torch.kernels.blas import single_threaded

TINY = float(np.finfo(np.float64).tiny)


class Certified:
    """A primal value and a dual one, which never lies above the optimum; arrays where there are several."""

    primal: Any
    dual: Any

    @property
    def gap(self) -> float:
        """The duality gap of all problems together, relative to the primal value."""
        primal = np.sum(self.primal)
        return float(relative_gap(primal - np.sum(self.dual), primal))


class SolverState(Certified):
    """Base of the solvers' states, which are immutable records.

    Attributes:
        num_iters: iterations made so far. With the seed it determines the random numbers of the next one, so
            that a state that is stored and taken up again goes on as if it had never been put down.
    """

    num_iters: int

    def solved(self, tol: float) -> bool:
        """Whether :func:`run` is done."""
        return self.gap <= tol


def relative_gap(difference: np.ndarray | float, value: np.ndarray | float) -> np.ndarray:
    """How far apart two objectives are, relative to ``value``.

    The difference counts without its sign: a dual value above the primal one belongs to infeasible duals, and
    must not pass for a closed gap.
    """
    # A problem without losses (all weights zero) has primal = dual = 0, and no gap.
    return np.abs(difference) / np.maximum(value, TINY)


State = TypeVar("State", bound=SolverState)
State_co = TypeVar("State_co", bound=SolverState, covariant=True)


class Solver(Protocol[State_co]):
    """A module with ``init(problem, …) -> state`` and ``update(problem, state, *, …) -> state``.

    ``update`` makes one iteration. Two more functions are optional:

    * ``limits(state, tol, left, watched)`` returns arguments of the next ``update``, where one makes several
      iterations: ``left`` is how many are allowed, ``watched`` whether a callback waits for its state;
    * ``next_stage(problem, state)`` is called where ``tol`` or ``max_iter`` is reached. It returns the
      problem and the first state of the next stage, or None and the final state.
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
    """Update until ``state.gap`` is at most ``tol``.

    This gap is

    * the duality gap relative to the primal value, wherever the solver has dual variables. For the labels'
      problems of a sigmoid belief network every label's own gap must be at most ``tol``, except with Pegasos,
      which bounds that of all labels together;
    * the norm of the gradient, relative to the one at zero weights, or the gain of the last step, relative to
      the objective, if that is more, for :mod:`~.structural.lbfgs`;
    * Σ |observed − expected counts| / Σ observed counts for :mod:`~.chains.iterative_scaling`;
    * the gain of the last step, relative to the objective, for :mod:`~.chains.expectation_maximisation`.

    Args:
        solver: a module of this package, such as :mod:`~.networks.dual_coordinate`.
        problem: what its ``init`` takes.
        max_iter: iterations after which it ends, solved or not; ``state.gap`` tells. Where missing labels are
            imputed between stages, each stage may take so many.
        start: a state to go on from; by default ``solver.init(problem)``. Duals of a similar problem, such as
            one with a smaller C, make a good one: ``start=solver.init(problem, duals)``.
        callback: called with the state after every update, for progress, logs and checkpoints; may raise to
            stop. A solver that waits for it makes one iteration an update.
        progress: called with the first state and after updates, too, but these are as long as without it, so
            that nothing else depends on it.
        settings: further arguments of ``solver.update``, such as ``seed``.

    Raises:
        ValueError: ``tol`` not above zero, ``max_iter`` below one; whatever ``init`` and ``update`` refuse.
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
                # Nothing that the solver can do changes it any more.
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
    """One ``update`` within the limits: of no more than ``left`` iterations."""
    limits = getattr(solver, "limits", lambda *_: {})
    return solver.update(problem, state, **limits(state, tol, left, watched), **settings)


def at_most(iterations: int) -> Callable[..., dict[str, Any]]:
    """The ``limits`` of a solver that makes so many iterations from one certificate to the next."""

    def limits(state: SolverState, tol: float, left: int, watched: bool) -> dict[str, Any]:
        return {"num_iters": min(iterations, left)}

    return limits
