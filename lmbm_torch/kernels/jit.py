"""Decorators that compile kernels by numba, or leave kernels to Python where numba cannot be used.

Where numba's internals are known to :mod:`lmbm_torch.kernels.numba_internals`, machine code is stored on disk
and compiled once. Elsewhere numba compiles by the public interface, in every process anew.
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
    """Return numba and None; or None and an exception, for a version that does not fit NumPy, too."""
    try:
        return import_module("numba"), None
    except Exception as error:
        return None, error


numba, missing = _library()

# Flags of LLVM: reassociate sums and products, for vectorisation; infinity and NaN keep their meaning.
SUMS = {"reassoc", "contract", "nsz", "arcp"}

_made: WeakSet[Any] = WeakSet()


@cache
def _internals() -> Any:
    """Return the module of numba's internals, or None with one warning if the internals have changed."""
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
    """Compile like ``numba.njit``, with a cache that only returns up-to-date code."""
    if function is None:
        return partial(njit, cache=cache, **options)
    if missing is not None:
        return _interpreted(function)
    internals = _internals()
    # numba's own cache would run an outdated inner loop after a change in another file.
    is_plain = internals is None
    made = numba.njit(**options)(function) if is_plain else internals.dispatcher(function, cache, options)
    _made.add(made)
    return made


def part(function: Callable | None = None, **options: Any) -> Any:
    """Compile like :func:`njit`, for functions called by compiled code only."""
    if function is None:
        return partial(part, **options)
    if missing is not None:
        return function
    internals = _internals()
    made = numba.njit(**options)(function) if internals is None else internals.part(function, options)
    _made.add(made)
    return made


def _interpreted(function: Callable) -> Callable:
    """Return a function without NumPy's warnings of overflows and divisions, unknown to compiled code."""

    @wraps(function)
    def run(*args: Any) -> Any:
        with np.errstate(all="ignore"):
            return function(*args)

    return run


def by_type(choose: Callable | None = None, *, inline: str = "never") -> Any:
    """Return a function whose implementation ``choose`` returns for the arguments' types.

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
    """Return the number of (function, argument types) pairs compiled by the process, cache hits excluded."""
    return sum(sum(each.stats.cache_misses.values()) for each in _made)


compiled = njit(cache=True, nogil=True, error_model="numpy")
fast = njit(cache=True, nogil=True, fastmath=SUMS, error_model="numpy")
# Flags for finite values.
FINITE = SUMS | {"nnan", "ninf"}
finite = njit(cache=True, nogil=True, fastmath=FINITE, error_model="numpy")
finite_part = part(fastmath=FINITE, error_model="numpy")
# Variants for functions called by compiled code only.
compiled_part = part(error_model="numpy")
fast_part = part(fastmath=SUMS, error_model="numpy")
# Inlined: a call counts references to array arguments, as slow as a node of a search or a row of sixty
# messages.
inlined = njit(inline="always")
