"""IN."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from types import ModuleType


@cache
def compiled(name: str, task: str) -> ModuleType | None:
    """The compiled module ``name``, or None, with one warning, where numba or Triton cannot be used.

    They may be missing, or of versions that do not fit numpy, the system or the module, however that shows.

    Args:
        name: its room and its own name, such as ``dual.network``.
        task: the task that then runs on its plain reference, for the warning.
    """
    room, _, module = name.rpartition(".")
    try:
        with uncollected():
            return import_module(f"lmbm_torch.kernels.{room}.compiled.{module}")
    except Exception as missing:
        warnings.warn(
            f"{task} runs on its plain reference, which is far slower: {type(missing).__name__}: {missing}",
            RuntimeWarning,
            stacklevel=4,
        )
        return None


@cache
def kernels(name: str, task: str) -> ModuleType:
    """The compiled module ``name`` or, where it cannot be used, the plain one with the same functions."""
    room, _, module = name.rpartition(".")
    return compiled(name, task) or import_module(f"lmbm_torch.kernels.{room}.plain.{module}")


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
