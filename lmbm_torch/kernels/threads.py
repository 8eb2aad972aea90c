"""TH."""

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
# Seconds that Ctrl-C waits for work that was told to stop.
GRACE = 0.5


def share(tasks: Iterable[Task], work: Callable[[Task], None]) -> None:
    """Call ``work`` on every task; each thread takes the next one when it is free.

    If ``work`` raises, no further task is begun, and the exception is raised here as soon as all threads have
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
    # This thread works too: to wake another one takes longer than a small task.
    others = [_pool(threads, os.getpid()).submit(take) for _ in range(min(threads, len(tasks)) - 1)]
    try:
        take()
    finally:
        # Every task has been taken. A thread that another call kept busy until now need not begin.
        wait([other for other in others if not other.cancel()])
    for other in others:
        if not other.cancelled():
            other.result()


def interruptible(work: Callable[[], Result], stop: Callable[[], None]) -> Result:
    """The result of ``work``, long compiled code, which Ctrl-C can end.

    Python tells of a signal in its main thread alone, and not before compiled code returns. So the work is
    done in another thread; an exception that is raised here meanwhile calls ``stop``, which makes the work
    return soon, and goes on as soon as it has, or after half a second without it. It takes some 50 µs more
    than a call.
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
    """:func:`interruptible` for kernels, which look at an array (1,) of bools, and return once it is true."""
    flag = np.zeros(1, np.bool_)
    return interruptible(lambda: work(flag), lambda: flag.fill(True))


def by_rows(batch: int, work: Callable[[int, int, np.ndarray], None]) -> None:
    """Call ``work(first, last, stop)`` for examples ``first`` up to ``last``, until ``stop[0]`` is set.

    They are shared out to threads, which end together and hear Ctrl-C.
    """
    size = max(1, -(-batch // (_BLOCKS_PER_THREAD * torch.get_num_threads())))

    def of_all(stop: np.ndarray) -> None:
        share(range(0, batch, size), lambda first: work(first, min(first + size, batch), stop))

    stoppable(of_all)


def leavable(work: Callable[[], Result]) -> Result:
    """The result of ``work``, long compiled code that nothing can stop: Ctrl-C leaves it alone.

    It then goes on in a thread of its own, which nobody waits for and which ends with the process.
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
    """This process's threads; a fork inherits the parent's pool without its threads."""
    return ThreadPoolExecutor(max_workers=threads, thread_name_prefix="lmbm_torch")


# Held by who has set the limit, which is the process's, not a thread's.
_LIMITED = threading.Lock()


@contextmanager
def single_threaded() -> Iterator[None]:
    """Within it BLAS uses one thread: more compete with ours for the cores (Yeast: eight times as slow).

    They do so for some 25 ms after each call, too, as they wait for the next one without sleep. Who is the
    first of several threads to enter gives BLAS its own threads back. Without threadpoolctl, which comes with
    scikit-learn, it keeps them.
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
    """Of the libraries of BLAS that are loaded; it takes a while to look for them."""
    try:
        from threadpoolctl import ThreadpoolController
    except ImportError:
        return None
    return ThreadpoolController().select(user_api="blas")
