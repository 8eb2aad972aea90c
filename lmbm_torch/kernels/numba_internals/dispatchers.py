"""Compiled functions: their code is kept, made for types alone, and that of parts has no wrappers."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from typing import Any

import numba
import numpy as np
from numba.core.types import unliteral

from lmbm_torch.kernels.numba_internals.kernel_cache import KernelCache
from lmbm_torch.kernels.uncollected import uncollected

# The releases, without their last number, with which all tests of the kernels have passed.
TRIED = {"0.68"}


def dispatcher(function: Callable, cache: bool, options: dict[str, Any]) -> Any:
    """Return what ``numba.njit`` makes of a function; its code is kept by :class:`KernelCache`."""
    made = numba.njit(**options)(function)
    resolve = made.get_call_template
    # A kernel that is called with a constant would otherwise be compiled anew for each value of it.
    made.get_call_template = lambda args, kws: resolve(
        tuple(map(unliteral, args)), {name: unliteral(each) for name, each in dict(kws).items()}
    )
    compile_now = made.compile

    def compile_at_once(sig: Any) -> Any:
        with uncollected():
            return compile_now(sig)

    made.compile = compile_at_once
    # numba looks through all that is installed for types of arguments that no kernel has.
    made._compilation_chain_init_hook = lambda: None  # pyright: ignore[reportAttributeAccessIssue]
    if cache:
        made._cache = KernelCache(function)  # pyright: ignore[reportAttributeAccessIssue]
    return made


def part(function: Callable, options: dict[str, Any]) -> Any:
    """Return a :func:`dispatcher` without the wrapper by which Python would call it.

    To take tuples of arrays apart for Python is a sixth to a third of what short functions take to compile.
    """
    made = dispatcher(function, True, {**options, "no_cpython_wrapper": True, "no_cfunc_wrapper": True})
    # A call from Python would find no code to enter.
    made.add_overload = lambda compiled: made.overloads.update({tuple(compiled.signature.args): compiled})
    made._compile_for_args = partial(_refuse, function)
    return made


def _refuse(function: Callable, *args: Any, **kws: Any) -> None:
    raise TypeError(f"{function.__qualname__}: called from compiled code alone")


def check() -> None:
    """Raise whatever goes wrong where an untried release of numba compiles, keeps and reads code.

    Raises:
        RuntimeError: a wrong result, or code that was not found again.
    """
    if ".".join(numba.__version__.split(".")[:2]) in TRIED:
        return
    chosen = numba.config.CACHE_DIR  # pyright: ignore[reportPrivateImportUsage]  # of NUMBA_CACHE_DIR
    with tempfile.TemporaryDirectory() as folder:
        numba.config.CACHE_DIR = folder  # pyright: ignore[reportPrivateImportUsage]
        try:
            half = part(_half, {})

            def quarters(values):
                return half(half(values.sum()))

            for is_kept in (False, True):
                kernel = dispatcher(quarters, True, {"nogil": True, "error_model": "numpy"})
                came, hits = kernel(np.arange(8.0)), sum(kernel.stats.cache_hits.values())
                if came != 7.0 or bool(hits) != is_kept:
                    raise RuntimeError(f"expected 7.0 by code found {int(is_kept)} times, got {came}, {hits}")
        finally:
            numba.config.CACHE_DIR = chosen  # pyright: ignore[reportPrivateImportUsage]


def _half(number):
    return number / 2
