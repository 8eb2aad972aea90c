"""Python threads around compiled code that releases the interpreter lock, and a limit for BLAS threads.

Unlike numba's own threads, the threads can be used from several threads at once and after a fork. The number
of threads is torch's: none are started in a data loader's worker, where torch has one thread.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import cache
from typing import Any, TypeVar

import numpy as np
import torch

Task = TypeVar("Task")
Result = TypeVar("Result")

_BLOCKS_PER_THREAD = 8
# Seconds to wait after Ctrl-C for work with a stop flag set.
GRACE = 0.5


def share(tasks: Iterable[Task], work: Callable[[Task], None]) -> None:
    """Call ``work`` on every task; each thread takes the next task when free.

    If ``work`` raises, no further task is started, and the exception is raised here after all threads have
    stopped.
    """
    tasks = list(tasks)
    if len(tasks) == 1:
        work(tasks[0])
        return
    remaining = iter(tasks)

    def take() -> None:
        try:
            for task in remaining:
                work(task)
        except BaseException:
            for _ in remaining:
                pass
            raise

    threads = torch.get_num_threads()
    # The current thread works too: waking another thread takes longer than a small task.
    others = [_pool(threads, os.getpid()).submit(take) for _ in range(min(threads, len(tasks)) - 1)]
    try:
        take()
    finally:
        # No task is left: helpers that have not started need not begin.
        wait([other for other in others if not other.cancel()])
    for other in others:
        if not other.cancelled():
            other.result()


def interruptible(work: Callable[[], Result], stop: Callable[[], None]) -> Result:
    """Return the result of ``work``, long compiled code, interruptible by Ctrl-C.

    Python handles signals in the main thread only, and not before compiled code returns. So ``work`` runs in
    another thread. An exception raised here meanwhile calls ``stop``, which makes ``work`` return soon, and
    is raised again after the return or after ``GRACE`` seconds. The overhead is about 50 µs.
    """
    if threading.current_thread() is not threading.main_thread():
        return work()
    task = _pool(torch.get_num_threads(), os.getpid()).submit(work)
    try:
        return task.result()
    except BaseException:
        stop()
        wait([task], GRACE)
        raise


def stoppable(work: Callable[[np.ndarray], Result]) -> Result:
    """Run kernels by :func:`interruptible`; kernels read an array (1,) of bool and return once it is true."""
    flag = np.zeros(1, np.bool_)
    return interruptible(lambda: work(flag), lambda: flag.fill(True))


def by_rows(batch: int, work: Callable[[int, int, np.ndarray], None]) -> None:
    """Call ``work(first, last, stop)`` on blocks of examples in several threads, until ``stop[0]`` is set.

    Threads end together, and Ctrl-C is respected.
    """
    size = max(1, -(-batch // (_BLOCKS_PER_THREAD * torch.get_num_threads())))

    def of_all(stop: np.ndarray) -> None:
        share(range(0, batch, size), lambda first: work(first, min(first + size, batch), stop))

    stoppable(of_all)


def leavable(work: Callable[[], Result]) -> Result:
    """Return the result of ``work``, long compiled code without a stop flag; Ctrl-C abandons the call.

    The work continues in a daemon thread that ends with the process.
    """
    if threading.current_thread() is not threading.main_thread():
        return work()
    task: Future[Result] = Future()

    def run() -> None:
        try:
            task.set_result(work())
        except BaseException as error:
            task.set_exception(error)

    threading.Thread(target=run, name="lmbm_torch", daemon=True).start()
    return task.result()


@cache
def _pool(threads: int, process: int) -> ThreadPoolExecutor:
    """Return the process's threads; a forked process would inherit a pool without threads."""
    return ThreadPoolExecutor(max_workers=threads, thread_name_prefix="lmbm_torch")


# Held by the thread that set the process-wide limit.
_LIMITED = threading.Lock()


@contextmanager
def single_threaded() -> Iterator[None]:
    """Limit BLAS to one thread within the block.

    More BLAS threads compete with the kernels' threads (Yeast: eight times slower), and spin for some 25 ms
    after each call, waiting for the next call. The first of several threads to enter restores the limit.
    Without threadpoolctl, which comes with scikit-learn, nothing is limited.
    """
    controller = _controller()
    if controller is None or not _LIMITED.acquire(blocking=False):
        yield
        return
    try:
        with controller.limit(limits=1):
            yield
    finally:
        _LIMITED.release()


@cache
def _controller() -> Any | None:
    """Return the controller of loaded BLAS libraries; the search takes a while."""
    try:
        from threadpoolctl import ThreadpoolController
    except ImportError:
        return None
    return ThreadpoolController().select(user_api="blas")
