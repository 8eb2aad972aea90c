"""Python threads that run compiled code without the interpreter lock, and a limit for BLAS threads.

Unlike numba's threads, these can be used from several threads at the same time and after a fork. The number
of threads is that of torch; for instance, a worker of a data loader has a single thread.
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
# Number of seconds to wait, after Ctrl-C, for compiled code to read the stop flag and return.
GRACE = 0.5


def share(tasks: Iterable[Task], work: Callable[[Task], None]) -> None:
    """Call ``work`` for all tasks; each free thread takes the next task.

    If ``work`` raises an exception, no further task is started, and the exception is raised here after all
    threads have stopped.
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
    # The current thread works, too, because waking another thread takes longer than a small task.
    others = [_pool(threads, os.getpid()).submit(take) for _ in range(min(threads, len(tasks)) - 1)]
    try:
        take()
    finally:
        # All tasks are taken: cancel helpers that have not started.
        wait([other for other in others if not other.cancel()])
    for other in others:
        if not other.cancelled():
            other.result()


def interruptible(work: Callable[[], Result], stop: Callable[[], None]) -> Result:
    """Run ``work``, long compiled code that Ctrl-C can interrupt; return the result.

    Python handles signals only in the main thread, and only after compiled code returns. Therefore ``work``
    runs in another thread. If an exception is raised here meanwhile, ``stop`` is called, which makes ``work``
    return soon. The exception is raised again after the return, or after ``GRACE`` seconds. The overhead is
    about 50 µs.
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
    """Run ``work`` by :func:`interruptible`, with an array (1,) of bool that tells kernels to return."""
    flag = np.zeros(1, np.bool_)
    return interruptible(lambda: work(flag), lambda: flag.fill(True))


def by_rows(batch: int, work: Callable[[int, int, np.ndarray], None]) -> None:
    """Call ``work(first, last, stop)`` for blocks of examples in several threads.

    Ctrl-C sets ``stop[0]``, which ends all threads early.
    """
    size = max(1, -(-batch // (_BLOCKS_PER_THREAD * torch.get_num_threads())))

    def of_all(stop: np.ndarray) -> None:
        share(range(0, batch, size), lambda first: work(first, min(first + size, batch), stop))

    stoppable(of_all)


def leavable(work: Callable[[], Result]) -> Result:
    """Run ``work``, long compiled code without a stop flag, which Ctrl-C abandons; return the result.

    Abandoned work continues in a daemon thread, which ends with the process.
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
    """Return the pool of threads of a process; a forked process needs a new pool."""
    return ThreadPoolExecutor(max_workers=threads, thread_name_prefix="lmbm_torch")


# The thread that has set the limit, which is valid for the whole process, holds this lock.
_LIMITED = threading.Lock()


@contextmanager
def single_threaded() -> Iterator[None]:
    """Limit BLAS to one thread within the block.

    Several BLAS threads would compete with the kernels' threads (on the data set Yeast, training is then
    eight times slower), and wait actively for 25 ms after each call. If several threads enter the block, the
    first restores the limit. Without threadpoolctl, which comes with scikit-learn, nothing is limited.
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
    """Return the controller of loaded BLAS libraries (cached, because the search is slow)."""
    try:
        from threadpoolctl import ThreadpoolController
    except ImportError:
        return None
    return ThreadpoolController().select(user_api="blas")
