"""States of the dual solvers of label problems, the stages of training, and paths over C."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypedDict

import numpy as np

from lmbm_torch.checks import check_positive, check_shape
from lmbm_torch.solvers.base import Solver, SolverState, relative_gap, run
from lmbm_torch.solvers.networks.problems import NetworkProblems

ROUNDS_PER_CALLBACK = 5


@dataclass(frozen=True)
class NetworkState(SolverState):
    """Feasible duals, their weights, and the primal and dual values.

    Args:
        dual_coef: (labels, instances).
        weights: (columns, labels).
        primal: (labels,), each label's objective at ``weights``.
        dual: (labels,), each label's dual value at ``dual_coef``.
        num_iters: see :class:`SolverState`.
        stage: the positions of the labels that :func:`~lmbm_torch.solvers.base.run` trains now; None for all
            labels together, with a common gap.
    """

    dual_coef: np.ndarray
    weights: np.ndarray
    primal: np.ndarray
    dual: np.ndarray
    num_iters: int
    stage: range | None = None

    @property
    def gaps(self) -> np.ndarray:
        """Return each label's duality gap relative to the primal value, (labels,)."""
        return relative_gap(self.primal - self.dual, self.primal)

    def solved(self, tol: float) -> bool:
        """Return whether every label of the stage has a relative gap of at most ``tol``."""
        return super().solved(tol) if self.stage is None else not unsolved(self, self.stage, tol).any()


def init(problems: NetworkProblems, dual_coef: np.ndarray | None = None) -> NetworkState:
    """Return the state at ``dual_coef`` (labels, instances), by default at zero.

    Raises:
        ValueError: the duals have a wrong shape, or are outside the box [0, C_l].
    """
    return certified(problems, problems.feasible(dual_coef), 0, next(problems.stages(), None))


def certified(
    problems: NetworkProblems, dual_coef: np.ndarray, num_iters: int, stage: range | None = None
) -> NetworkState:
    """Return the state at given duals, without the round-off of a solver's running sums."""
    weights = problems.weights(dual_coef)
    primal, dual = problems.primal(weights), problems.dual(dual_coef, weights)
    return NetworkState(dual_coef, weights, primal, dual, num_iters, stage)


def unsolved(state: NetworkState, labels: np.ndarray | range, tol: float) -> np.ndarray:
    """Return for each of ``labels`` whether its relative gap is above ``tol``, compared as in the solvers."""
    return (state.primal - state.dual > tol * state.primal)[labels]


class UpdateSettings(TypedDict, total=False):
    """Settings of an ``update``; :func:`work` holds the defaults.

    Args:
        tol: labels with a relative gap of at most ``tol`` stay unchanged.
        num_iters: the largest number of rounds.
        seed: the seed of the order in which instances are visited.
        positions: the labels to train, by position in the ordering; by default all.
    """

    tol: float
    num_iters: int
    seed: int
    positions: Sequence[int] | None


class Work(NamedTuple):
    """The settings of an update, and the unsolved labels by position."""

    labels: np.ndarray
    tol: float
    num_iters: int
    seed: int


def work(
    problems: NetworkProblems,
    state: NetworkState,
    tol: float = 1e-3,
    num_iters: int = 1,
    seed: int = 0,
    positions: Sequence[int] | None = None,
) -> Work:
    """Check an update's settings, and select the unsolved labels.

    Raises:
        ValueError: a state of other problems, unknown positions.
    """
    check_shape("state.dual_coef", state.dual_coef, *problems.spins.shape)
    check_shape("state.weights", state.weights, problems.num_columns, problems.num_labels)
    every = range(problems.num_labels)
    if positions is not None and not set(positions) <= set(every):
        raise ValueError(
            f"positions: expected numbers of labels from 0 to {len(every) - 1}, got {list(positions)}"
        )
    labels = np.arange(len(every)) if positions is None else np.unique(np.array(positions, np.int64))
    return Work(labels[unsolved(state, labels, tol)], tol, num_iters, seed)


def limits(state: NetworkState, tol: float, left: int, watched: bool) -> dict[str, Any]:
    """Return arguments for the next ``update``: all rounds that are left, or few if a callback waits."""
    rounds = min(ROUNDS_PER_CALLBACK, left) if watched else left
    return {"tol": tol, "num_iters": rounds, "positions": state.stage}


def next_stage(problems: NetworkProblems, state: NetworkState) -> tuple[NetworkProblems | None, NetworkState]:
    """Impute the missing values of the stage's last label, before later labels use them.

    Returns:
        The completed problems and the first state of the next stage; after the last stage, None and the state
        with a new certificate.
    """
    following = following_stage(problems, state)
    if following is None:
        return None, certified(problems, state.dual_coef, state.num_iters, state.stage)
    completed = problems.impute(following[0] - 1, state.weights)
    return completed, certified(completed, state.dual_coef, state.num_iters, following)


def following_stage(problems: NetworkProblems, state: NetworkState) -> range | None:
    """Return the positions to train after the state's stage; None after the last stage."""
    stages = list(problems.stages())
    following = stages[stages.index(state.stage) + 1 :] if state.stage in stages else []
    return following[0] if following else None


def path(
    solver: Solver[NetworkState],
    problems: NetworkProblems,
    penalties: Sequence[float],
    **settings: Any,
) -> Iterator[NetworkState]:
    """Solve for one C after another; each start is the last solution's duals, scaled to the new box.

    Args:
        penalties: values of C.
        settings: arguments of :func:`~lmbm_torch.solvers.base.run`.

    Yields:
        The state for each of ``penalties``, in the given order (ascending order is fastest).

    Raises:
        ValueError: a penalty is not above zero; see also :func:`~lmbm_torch.solvers.base.run`.
    """
    weight = problems.upper / problems.C
    duals, last = None, None
    for C in penalties:
        check_positive("penalties", C)
        problems = replace(problems, C=C, upper=C * weight)
        if duals is not None:
            duals = np.minimum(duals * (C / last), problems.upper)
        state = run(solver, problems, start=solver.init(problems, duals), **settings)
        yield state
        duals, last = state.dual_coef, C
