"""Decorators that compile the kernels by numba.

Where numba's internals are as :mod:`lmbm_torch.kernels.numba_internals` knows them, code is kept on the disk
and compiled once; elsewhere numba compiles by its public interface, anew in each process.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache, partial
from importlib import import_module
from typing import Any
from weakref import WeakSet

import numba

# Sums and products may be reassociated, which vectorises them; infinity and NaN keep their meaning.
SUMS = {"reassoc", "contract", "nsz", "arcp"}

_made: WeakSet[Any] = WeakSet()


@cache
def _internals() -> Any:
    """The module of dispatchers, or None, with one warning, where numba's internals are others."""
    try:
        found = import_module("lmbm_torch.kernels.numba_internals")
        found.check()
        return found
    except Exception as changed:
        warnings.warn(
            f"numba {numba.__version__} is not as lmbm_torch knows it ({type(changed).__name__}: {changed}): "
            "kernels are compiled in every process anew, for seconds up to a minute",
            RuntimeWarning,
            stacklevel=2,
        )
        return None


def njit(function: Callable | None = None, *, cache: bool = False, **options: Any) -> Any:
    """``numba.njit``, but for the cache: code is kept that is found if, and only if, it is up to date."""
    if function is None:
        return partial(njit, cache=cache, **options)
    internals = _internals()
    # numba's own cache would run an inner loop that was changed in another file as it was.
    is_plain = internals is None
    made = numba.njit(**options)(function) if is_plain else internals.dispatcher(function, cache, options)
    _made.add(made)
    return made


def part(function: Callable | None = None, **options: Any) -> Any:
    """Compile a function, as :func:`njit` does, that compiled code alone calls."""
    if function is None:
        return partial(part, **options)
    internals = _internals()
    made = numba.njit(**options)(function) if internals is None else internals.part(function, options)
    _made.add(made)
    return made


def num_compiled() -> int:
    """Return the number of functions, each for some types, that this process has compiled and not found."""
    return sum(sum(each.stats.cache_misses.values()) for each in _made)


compiled = njit(cache=True, nogil=True, error_model="numpy")
fast = njit(cache=True, nogil=True, fastmath=SUMS, error_model="numpy")
# For values that are neither infinite nor NaN.
FINITE = SUMS | {"nnan", "ninf"}
finite = njit(cache=True, nogil=True, fastmath=FINITE, error_model="numpy")
finite_part = part(fastmath=FINITE, error_model="numpy")
# The same for functions that compiled code alone calls.
compiled_part = part(error_model="numpy")
fast_part = part(fastmath=SUMS, error_model="numpy")
# A call would count references to the arrays that it is given, which takes as long as a node of a search or a
# row of sixty messages.
inlined = njit(inline="always")
