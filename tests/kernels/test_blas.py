"""BLAS has one thread while our own threads work, and its own again afterwards."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from lmbm_torch.kernels.threads import single_threaded
from lmbm_torch.solvers.base import run

threadpoolctl = pytest.importorskip("threadpoolctl")


def threads() -> set[int]:
    blas = threadpoolctl.ThreadpoolController().select(user_api="blas")
    return {library["num_threads"] for library in blas.info()}


@pytest.fixture(autouse=True)
def two_threads():
    with threadpoolctl.threadpool_limits(2, "blas"):
        if threads() != {2}:
            pytest.skip("BLAS of one thread alone")
        yield


@single_threaded()
def fails() -> None:
    assert threads() == {1}
    with single_threaded():
        assert threads() == {1}
    assert threads() == {1}
    raise KeyError


def test_one_thread_within_however_it_is_left():
    for _ in range(2):
        with pytest.raises(KeyError):
            fails()
        assert threads() == {2}


def test_who_enters_second_may_leave_last():
    inside, leave = threading.Event(), threading.Event()

    def second() -> None:
        with single_threaded():
            inside.set()
            leave.wait()

    other = threading.Thread(target=second)
    with single_threaded():
        other.start()
        inside.wait()
        assert threads() == {1}
    leave.set()
    other.join()
    assert threads() == {2}


def test_solvers_run_beside_one_thread():
    class State:
        num_iters, gap = 0, np.inf

        def solved(self, tol: float) -> bool:
            return self.num_iters > 0

    class Solver:
        @staticmethod
        def init(problem: object) -> State:
            return State()

        @staticmethod
        def update(problem: object, state: State) -> State:
            assert threads() == {1}
            after = State()
            after.num_iters = 1
            return after

    assert run(Solver(), object()).num_iters == 1  # pyright: ignore[reportArgumentType]
    assert threads() == {2}
