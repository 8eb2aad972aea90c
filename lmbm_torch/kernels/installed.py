"""Imports of compiled modules, with a fallback for installations without numba or Triton."""

from __future__ import annotations

import warnings
from functools import cache
from importlib import import_module
from types import ModuleType

from lmbm_torch.extras import uncollected


@cache
def compiled(name: str, task: str) -> ModuleType | None:
    """Return the compiled module ``name``, or None with one warning if numba or Triton cannot be used.

    Both may be missing, or of versions that do not fit NumPy, the system or the module; any exception counts.

    Args:
        name: room and module, such as ``dual.network``.
        task: the task that then runs on the plain reference, for the warning.
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
    """Return the compiled module ``name`` or, if not usable, the plain module with the same functions."""
    room, _, module = name.rpartition(".")
    return compiled(name, task) or import_module(f"lmbm_torch.kernels.{room}.plain.{module}")
