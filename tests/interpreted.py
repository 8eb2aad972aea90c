"""Kernels as where numba cannot be imported: the same source, run by Python."""

from __future__ import annotations

import pkgutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType

import pytest

import lmbm_torch.kernels.dual
import lmbm_torch.kernels.search
from lmbm_torch.inference.under_rules import allowed
from lmbm_torch.kernels import installed

ROOMS = (lmbm_torch.kernels.dual, lmbm_torch.kernels.search)
# Without a decorator, and so the same with numba and without.
RECORDS = {"dual.records", "search.records"}
MODULES = sorted(
    f"{room.__name__.removeprefix('lmbm_torch.kernels.')}.{each.name}"
    for room in ROOMS
    for each in pkgutil.iter_modules(room.__path__)
)


def forget() -> None:
    """Let kernels be looked for anew."""
    for cached in (installed.has_numba, installed.kernels, installed.compiled, allowed._rows):
        cached.cache_clear()


@contextmanager
def without_numba() -> Iterator[None]:
    """Import kernels anew, as a process without numba does; afterwards the compiled ones are back."""
    names = [f"lmbm_torch.kernels.{name}" for name in ["jit", "sums", *sorted(set(MODULES) - RECORDS)]]
    for name in names:
        import_module(name)
    with pytest.MonkeyPatch.context() as patch:
        for name in names:
            room, _, last = name.rpartition(".")
            patch.delitem(sys.modules, name)
            patch.delattr(sys.modules[room], last)
        patch.setitem(sys.modules, "numba", None)
        forget()
        yield
    forget()


def interpreted(name: str) -> ModuleType:
    """Return a module of kernels as it is without numba, for tests that look inside."""
    with without_numba():
        return import_module(f"lmbm_torch.kernels.{name}")
