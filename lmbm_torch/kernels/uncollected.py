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
        # What was made meanwhile lasts: a pass over it would take what was just saved. Thawing moves all that
        # is frozen to the oldest generation, where the next full pass finds what is garbage by then.
        if not gc.get_freeze_count():
            gc.freeze()
            gc.unfreeze()
        gc.enable()
