"""How numba compiles the kernels."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numba
from numba.core.types import unliteral

from lmbm_torch.backends.kernel_cache import KernelCache

# Sums and products may be reassociated, which vectorises them; infinity and NaN keep their meaning.
SUMS = {"reassoc", "contract", "nsz", "arcp"}


def njit(function: Callable | None = None, *, cache: bool = False, **options: Any) -> Any:
    """``numba.njit``, but for the cache: code is kept by :mod:`lmbm_torch.backends.kernel_cache`."""
    if function is None:
        return partial(njit, cache=cache, **options)
    dispatcher = numba.njit(**options)(function)
    resolve = dispatcher.get_call_template
    # A kernel that is called with a constant would otherwise be compiled anew for each value of it.
    dispatcher.get_call_template = lambda args, kws: resolve(
        tuple(map(unliteral, args)), {name: unliteral(each) for name, each in dict(kws).items()}
    )
    if cache:
        dispatcher._cache = KernelCache(function)  # pyright: ignore[reportAttributeAccessIssue]
    return dispatcher


compiled = njit(cache=True, nogil=True, error_model="numpy")
fast = njit(cache=True, nogil=True, fastmath=SUMS, error_model="numpy")
# A call would count references to the arrays that it is given, which takes as long as a node of a search or a
# row of sixty messages.
inlined = njit(inline="always")
