"""Imports and compilations without the garbage collector, which takes a fifth to a third of them."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Collect no cycles meanwhile: all that torch has imported is looked through at each time.

    Inside another one it changes nothing, nor where the caller has turned the collector off.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
