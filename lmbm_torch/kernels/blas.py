"""Threads of BLAS beside ours."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

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
