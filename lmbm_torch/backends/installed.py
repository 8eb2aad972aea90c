"""Which compiled modules can be used here."""

from __future__ import annotations

import warnings
from functools import cache
from importlib import import_module
from types import ModuleType


@cache
def compiled(name: str, task: str) -> ModuleType | None:
    """The compiled module ``name``; None, said once, where what it needs is not installed.

    Args:
        name: its room and its own, such as ``dual.network``.
        task: what then runs on its plain reference, for the message.
    """
    room, _, module = name.rpartition(".")
    try:
        return import_module(f"lmbm_torch.backends.{room}.compiled.{module}")
    except ImportError as missing:
        warnings.warn(
            f"{task} runs on its plain reference, which is far slower: {missing}",
            RuntimeWarning,
            stacklevel=4,
        )
        return None


def kernels(name: str, task: str) -> ModuleType:
    """The compiled module ``name`` or, where it cannot be used, the plain one of the same functions."""
    room, _, module = name.rpartition(".")
    return compiled(name, task) or import_module(f"lmbm_torch.backends.{room}.plain.{module}")
