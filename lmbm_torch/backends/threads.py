"""Python threads around compiled code that releases the interpreter lock.

Unlike numba's own threads they can be used from several threads at once and after a fork. There are as many
as torch uses: none are started in a data loader's worker, where torch has one thread.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache
from typing import TypeVar

import torch

Task = TypeVar("Task")


def share(tasks: Iterable[Task], work: Callable[[Task], None]) -> None:
    """Call ``work`` on every task; each thread takes the next one when it is free.

    If ``work`` raises, no further task is begun, and the exception is raised here as soon as all threads have
    stopped.
    """
    tasks = list(tasks)
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


@cache
def _pool(threads: int, process: int) -> ThreadPoolExecutor:
    """This process's threads; a fork inherits the parent's pool without its threads."""
    return ThreadPoolExecutor(max_workers=max(threads - 1, 1), thread_name_prefix="lmbm_torch")
