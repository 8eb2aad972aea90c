"""Threads of BLAS beside ours."""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import cache

from threadpoolctl import ThreadpoolController


def single_threaded() -> AbstractContextManager[object]:
    """Within it BLAS uses one thread: more compete with ours for the cores (Yeast: eight times as slow)."""
    return _controller().limit(limits=1, user_api="blas")


@cache
def _controller() -> ThreadpoolController:
    return ThreadpoolController()
