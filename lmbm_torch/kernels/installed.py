"""Late imports of kernels, because importing numba is slow."""

from __future__ import annotations

import warnings
from functools import cache
from importlib import import_module
from types import ModuleType

from lmbm_torch.extras import uncollected


@cache
def has_numba() -> bool:
    """Return whether numba can be used; if not, warn once."""
    missing = import_module("lmbm_torch.kernels.jit").missing
    if missing is not None:
        warnings.warn(
            f"numba cannot be used ({type(missing).__name__}: {missing}): loops run interpreted, some 100 "
            'times slower; pip install "lmbm-torch[fast]" brings numba',
            RuntimeWarning,
            stacklevel=4,
        )
    return missing is None


@cache
def kernels(name: str) -> ModuleType:
    """Return a module of kernels, which numba compiles; without numba, warn once and run by Python.

    Args:
        name: subpackage and module, such as ``dual.network``.
    """
    with uncollected():
        has_numba()
        return import_module(f"lmbm_torch.kernels.{name}")


@cache
def compiled(name: str) -> ModuleType | None:
    """Return a module of kernels, or None if numba is missing and the caller has a routine in torch."""
    with uncollected():
        return kernels(name) if has_numba() else None
