"""Threads of BLAS beside ours."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any


def single_threaded() -> AbstractContextManager[object]:
    """Within it BLAS uses one thread: more compete with ours for the cores (Yeast: eight times as slow).

    Without threadpoolctl, which comes with scikit-learn, it keeps its own.
    """
    controller = _controller()
    return nullcontext() if controller is None else controller.limit(limits=1, user_api="blas")


@cache
def _controller() -> Any | None:
    """Of the libraries that are loaded; it takes a while to look for them."""
    try:
        from threadpoolctl import ThreadpoolController
    except ImportError:
        return None
    return ThreadpoolController()
