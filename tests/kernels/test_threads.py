"""Sharing tasks among threads: each task once, exceptions raised, nobody waits for ever."""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import numpy as np
import pytest
import torch
from strategies.label_problems import random_problems

from lmbm_torch.kernels.threads import share
from lmbm_torch.solvers.base import run
from lmbm_torch.solvers.networks import dual_coordinate

LONG = 60.0


@pytest.fixture(params=[2, 4])
def threads(request) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def solve(seed: int) -> np.ndarray:
    return run(dual_coordinate, random_problems(seed, instances=60, num_labels=6), tol=1e-6).dual_coef


def test_each_task_is_done_once(threads):
    done: list[int] = []
    share(range(200), done.append)
    assert sorted(done) == list(range(200))
    share([], done.append)
    assert len(done) == 200


def test_one_thread_does_all_tasks_in_order_itself():
    done: list[tuple[int, int]] = []
    share(range(5), lambda task: done.append((task, threading.get_ident())))
    assert done == [(task, threading.get_ident()) for task in range(5)]


def test_as_many_threads_as_torch_has_work_at_once(threads):
    meet = threading.Barrier(threads, timeout=LONG)
    share(range(threads), lambda _: meet.wait())


@pytest.mark.parametrize("caller", [True, False], ids=["caller", "other thread"])
def test_exception_is_raised_once_nobody_works_any_more(threads, caller):
    meet = threading.Barrier(threads, timeout=LONG)
    at_work = threading.Lock(), [0]
    begun: list[int] = []

    def work(task: int) -> None:
        begun.append(task)
        with at_work[0]:
            at_work[1][0] += 1
        try:
            meet.wait()
            if (threading.current_thread() is threading.main_thread()) == caller:
                raise KeyError("this one")
            time.sleep(0.05)
        finally:
            with at_work[0]:
                at_work[1][0] -= 1

    with pytest.raises(KeyError, match="this one"):
        share(range(threads + 10), work)
    assert at_work[1] == [0]
    assert sorted(begun) == list(range(threads))
    done: list[int] = []
    share(range(9), done.append)
    assert sorted(done) == list(range(9))


def test_shares_within_shares_end(threads):
    done: list[tuple[int, int]] = []

    def outer(task: int) -> None:
        share(range(3), lambda inner: done.append((task, inner)))

    caller = threading.Thread(target=share, args=(range(8), outer), daemon=True)
    caller.start()
    caller.join(LONG)
    assert not caller.is_alive()
    assert sorted(done) == [(task, inner) for task in range(8) for inner in range(3)]


def test_two_threads_may_solve_at_once(threads):
    expected = [solve(seed) for seed in range(6)]
    with ThreadPoolExecutor(2) as pool:
        for one, two in zip(pool.map(solve, range(6)), expected, strict=True):
            np.testing.assert_array_equal(one, two)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_forked_worker_may_solve(threads):
    expected = solve(0)
    fork = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(1, mp_context=fork) as pool:
        np.testing.assert_array_equal(pool.submit(solve, 0).result(LONG), expected)
