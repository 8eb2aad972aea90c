"""The driver of all solvers: what it hands to an update, and where it ends."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from lmbm_torch.solvers.base import SolverState, at_most, run, step


@dataclass(frozen=True)
class CountedState(SolverState):
    primal: float = 1.0
    dual: float = 0.0
    num_iters: int = 0


@dataclass
class Recorder:
    """A solver that records the arguments of its updates, and makes no progress after ``most`` iterations."""

    most: int = 100
    calls: list[dict[str, Any]] = field(default_factory=list)

    def init(self, problem: Any) -> CountedState:
        return CountedState()

    def update(self, problem: Any, state: CountedState, **arguments: Any) -> CountedState:
        self.calls.append(arguments)
        assert len(self.calls) < 100, "the run does not end"
        made = arguments.get("num_iters", 1)
        return state if state.num_iters >= self.most else replace(state, num_iters=state.num_iters + made)


class LimitedRecorder(Recorder):
    limits = staticmethod(at_most(4))


def test_a_step_hands_over_the_settings_and_the_solvers_own_limits():
    plain, limited = Recorder(), LimitedRecorder()
    state = plain.init("problem")
    assert step(plain, "problem", state, tol=1e-3, seed=5).num_iters == 1
    assert step(limited, "problem", state, tol=1e-3, left=3, seed=5).num_iters == 3
    assert step(limited, "problem", state, tol=1e-3, left=9, seed=5).num_iters == 4
    assert plain.calls == [{"seed": 5}]
    assert limited.calls == [{"seed": 5, "num_iters": 3}, {"seed": 5, "num_iters": 4}]


def test_limits_are_told_the_tolerance_the_iterations_left_and_whether_anyone_watches():
    told = []

    class Solver(Recorder):
        @staticmethod
        def limits(*arguments: Any) -> dict[str, Any]:
            told.append(arguments[1:])
            return {}

    run(Solver(), "problem", tol=0.1, max_iter=2)
    run(Solver(), "problem", tol=0.1, max_iter=1, callback=lambda state: None)
    assert told == [(0.1, 2, False), (0.1, 1, False), (0.1, 1, True)]


@pytest.mark.parametrize("most", [0, 3])
def test_a_run_ends_where_an_update_returns_its_own_state(most):
    solver, seen = Recorder(most), []
    state = run(solver, "problem", max_iter=50, callback=seen.append)
    assert state.num_iters == most
    assert len(solver.calls) == most + 1
    assert [each.num_iters for each in seen] == list(range(1, most + 1))


def test_the_gap_is_of_all_problems_together_relative_to_the_primal_value():
    state = replace(CountedState(), primal=np.array([3.0, 1.0]), dual=np.array([2.0, 0.5]))
    assert state.gap == pytest.approx(1.5 / 4.0)
    assert state.solved(0.375)
    assert not state.solved(0.374)
    # A dual value above the primal one closes nothing.
    assert replace(state, dual=np.array([4.0, 1.5])).gap == pytest.approx(1.5 / 4.0)
    assert replace(state, primal=0.0, dual=0.0).gap == 0.0
