"""How numba compiles the kernels."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numba
from numba.core.types import unliteral

from lmbm_torch.backends.kernel_cache import KernelCache
from lmbm_torch.backends.linking import linked
from lmbm_torch.backends.uncollected import uncollected

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
    compile_now = dispatcher.compile

    def compile_at_once(sig: Any) -> Any:
        with uncollected(), linked():
            return compile_now(sig)

    dispatcher.compile = compile_at_once
    # numba looks through all that is installed for types of arguments that no kernel has.
    dispatcher._compilation_chain_init_hook = lambda: None  # pyright: ignore[reportAttributeAccessIssue]
    if cache:
        dispatcher._cache = KernelCache(function)  # pyright: ignore[reportAttributeAccessIssue]
    return dispatcher


def part(function: Callable | None = None, **options: Any) -> Any:
    """:func:`njit` for what compiled code alone calls, without the wrapper for Python.

    To take tuples of arrays apart for Python is a sixth to a third of what short functions take to compile.
    """
    if function is None:
        return partial(part, **options)
    dispatcher = njit(function, cache=True, no_cpython_wrapper=True, no_cfunc_wrapper=True, **options)
    # A call from Python would find no code to enter.
    dispatcher.add_overload = lambda compiled: dispatcher.overloads.update(
        {tuple(compiled.signature.args): compiled}
    )
    dispatcher._compile_for_args = partial(_refuse, function)
    return dispatcher


def _refuse(function: Callable, *args: Any, **kws: Any) -> None:
    raise TypeError(f"{function.__qualname__}: called from compiled code alone")


compiled = njit(cache=True, nogil=True, error_model="numpy")
fast = njit(cache=True, nogil=True, fastmath=SUMS, error_model="numpy")
# A call would count references to the arrays that it is given, which takes as long as a node of a search or a
# row of sixty messages.
inlined = njit(inline="always")
