"""The compiled modules that can be used in this installation."""

from __future__ import annotations

import warnings
from functools import cache
from importlib import import_module
from types import ModuleType

from lmbm_torch.kernels.uncollected import uncollected


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
