"""What the dual solvers of label problems share: where they start, what they certify, and their stages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

import numpy as np

from lmbm_torch.checks import check_count, check_positive, check_shape
from lmbm_torch.solvers.base import Callback, SolverState
from lmbm_torch.solvers.networks.problems import NetworkProblems

ROUNDS_PER_CALLBACK = 5

Problems = TypeVar("Problems", bound=NetworkProblems, contravariant=True)


class Update(Protocol[Problems]):
    """Up to ``rounds`` further rounds for those of the labels at ``positions`` that are not solved."""

    def __call__(
        self, problems: Problems, state: SolverState, *, tol: float, rounds: int, positions: range
    ) -> SolverState: ...


def initial(problems: NetworkProblems, dual_coef: np.ndarray | None) -> SolverState:
    """The state at ``dual_coef`` (labels, instances), by default at zero; refuses what is not feasible."""
    if dual_coef is None:
        dual_coef = np.zeros(problems.spins.shape)
    check_shape("dual_coef", dual_coef, *problems.spins.shape)
    box = problems.upper * (problems.spins != 0)
    if not ((dual_coef >= 0) & (dual_coef <= box)).all():
        raise ValueError("dual_coef: expected values between 0 and C (0 where a label is missing)")
    return certified(problems, np.array(dual_coef, np.float64), num_passes=0)


def certified(problems: NetworkProblems, dual_coef: np.ndarray, num_passes: int) -> SolverState:
    """The state at these duals, free of what a solver's running sums have gathered in round-off."""
    weights = problems.weights(dual_coef)
    primal, dual = problems.primal(weights), problems.dual(dual_coef, weights)
    return SolverState(dual_coef, weights, primal, dual, num_passes)


def unsolved(state: SolverState, labels: np.ndarray | range, tol: float) -> np.ndarray:
    """Which of ``labels`` have a relative gap above ``tol``, by the very comparison that ends the solvers."""
    return (state.primal - state.dual > tol * state.primal)[labels]


def labels_to_solve(
    problems: NetworkProblems, state: SolverState, tol: float, positions: Sequence[int] | None
) -> np.ndarray:
    """Those of ``positions``, by default all, that are not solved; refuses a state of other problems."""
    check_shape("state.dual_coef", state.dual_coef, *problems.spins.shape)
    check_shape("state.weights", state.weights, problems.num_columns, problems.num_labels)
    every = np.arange(problems.num_labels)
    if positions is not None and not set(positions) <= set(every):
        raise ValueError(f"positions: expected some of 0 … {len(every) - 1}, got {list(positions)}")
    labels = every if positions is None else np.unique(np.array(positions, np.int64))
    return labels[unsolved(state, labels, tol)]


def run_stages(
    problems: Problems,
    update: Update[Problems],
    *,
    tol: float,
    max_rounds: int,
    dual_coef: np.ndarray | None,
    callback: Callback | None,
) -> SolverState:
    """Update until every label's relative gap is ``tol``, stage by stage where labels have missing values.

    What a label lacks is imputed by its own prediction before the labels behind it in the ordering see it.

    Raises:
        ValueError: ``tol`` not above zero, ``max_rounds`` below one, or duals outside their box.
    """
    check_positive("tol", tol)
    check_count("max_rounds", max_rounds)
    state = initial(problems, dual_coef)
    rounds_at_once = max_rounds if callback is None else ROUNDS_PER_CALLBACK
    for stage in problems.stages():
        end = state.num_passes + max_rounds
        while state.num_passes < end and unsolved(state, stage, tol).any():
            rounds = min(rounds_at_once, end - state.num_passes)
            state = update(problems, state, tol=tol, rounds=rounds, positions=stage)
            if callback is not None:
                callback(state)
        completed = problems.impute(stage[-1], state.weights)
        if completed is not problems:
            problems, state = completed, certified(completed, state.dual_coef, state.num_passes)
    return certified(problems, state.dual_coef, state.num_passes)
