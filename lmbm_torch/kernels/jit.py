"""Decorators that compile kernels by numba, or leave kernels to Python if numba cannot be used.

If :mod:`lmbm_torch.kernels.numba_internals` fits the version of numba, machine code is stored on disk, and
compiled only once. Otherwise numba compiles by the public interface, again in every process.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache, partial, wraps
from importlib import import_module
from typing import Any
from weakref import WeakSet

import numpy as np


def _library() -> tuple[Any, Exception | None]:
    """Return numba and None; or None and the exception of the import (also if numba does not fit NumPy)."""
    try:
        return import_module("numba"), None
    except Exception as error:
        return None, error


numba, missing = _library()

# Flags of LLVM that allow reordering of sums and products, for vectorisation, but keep infinity and NaN.
SUMS = {"reassoc", "contract", "nsz", "arcp"}

_made: WeakSet[Any] = WeakSet()


@cache
def _internals() -> Any:
    """Return the module that uses numba's internals; if these have changed, warn once and return None."""
    try:
        found = import_module("lmbm_torch.kernels.numba_internals")
        found.check()
        return found
    except Exception as changed:
        warnings.warn(
            f"numba {numba.__version__} has changed internals ({type(changed).__name__}: {changed}), so "
            "that every process compiles kernels again, for up to a minute; use another version of numba",
            RuntimeWarning,
            stacklevel=2,
        )
        return None


def njit(function: Callable | None = None, *, cache: bool = False, **options: Any) -> Any:
    """Compile like ``numba.njit``, with a cache that never returns outdated code."""
    if function is None:
        return partial(njit, cache=cache, **options)
    if missing is not None:
        return _interpreted(function)
    internals = _internals()
    # numba's own cache is not used, because it ignores changes in other files that a kernel calls.
    is_plain = internals is None
    made = numba.njit(**options)(function) if is_plain else internals.dispatcher(function, cache, options)
    _made.add(made)
    return made


def part(function: Callable | None = None, **options: Any) -> Any:
    """Compile like :func:`njit` a function that only compiled code calls."""
    if function is None:
        return partial(part, **options)
    if missing is not None:
        return function
    internals = _internals()
    made = numba.njit(**options)(function) if internals is None else internals.part(function, options)
    _made.add(made)
    return made


def _interpreted(function: Callable) -> Callable:
    """Silence NumPy's warnings of overflow and division in a function, as in compiled code."""

    @wraps(function)
    def run(*args: Any) -> Any:
        with np.errstate(all="ignore"):
            return function(*args)

    return run


def by_type(choose: Callable | None = None, *, inline: str = "never") -> Any:
    """Return a function with an implementation by ``choose``, which depends on the arguments' types.

    Compiled code calls ``choose`` with numba's types during compilation, interpreted code with the arguments.
    """
    if choose is None:
        return partial(by_type, inline=inline)

    def called(*args: Any) -> Any:
        return choose(*args)(*args)

    if missing is None:
        import_module("numba.extending").overload(called, inline=inline)(choose)
    return called


def num_compiled() -> int:
    """Return how many pairs (function, argument types) this process has compiled, not read from the cache."""
    return sum(sum(each.stats.cache_misses.values()) for each in _made)


compiled = njit(cache=True, nogil=True, error_model="numpy")
fast = njit(cache=True, nogil=True, fastmath=SUMS, error_model="numpy")
# Flags of LLVM for functions whose values are always finite.
FINITE = SUMS | {"nnan", "ninf"}
finite = njit(cache=True, nogil=True, fastmath=FINITE, error_model="numpy")
finite_part = part(fastmath=FINITE, error_model="numpy")
# Decorators for functions that only compiled code calls.
compiled_part = part(error_model="numpy")
fast_part = part(fastmath=SUMS, error_model="numpy")
# For short functions: a call would count references to arrays, which takes as long as a row of 60 messages.
inlined = njit(inline="always")
