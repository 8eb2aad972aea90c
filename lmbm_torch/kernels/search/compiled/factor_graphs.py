"""The sweeps of :mod:`~lmbm_torch.kernels.search.plain.factor_graphs`, compiled.

Compiled code calls no plain function: each function gets globals in which the functions that it calls are
compiled.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

from lmbm_torch.kernels.jit import compiled, compiled_part
from lmbm_torch.kernels.search.plain import factor_graphs as plain

_scope = dict(vars(plain))


def _made(function: Callable[..., Any], compile: Callable[..., Any]) -> Any:
    """Return a function compiled, calling the parts made so far."""
    copy = FunctionType(function.__code__, _scope, function.__name__)
    copy.__module__ = __name__
    return compile(copy)


for _part in (
    *(plain.max_marginal, plain.add_unary, plain.bound_of, plain.conditional, plain.to_variables),
    *(plain.to_tables, plain.balance, plain.moved, plain.expected, plain.free_energy),
):
    _scope[_part.__name__] = _made(_part, compiled_part)
ascend, rounded, improved, score_of, propagate, double_loop, bethe, mean_field = (
    _made(each, compiled)
    for each in (
        *(plain.ascend, plain.rounded, plain.improved, plain.score_of, plain.propagate, plain.double_loop),
        *(plain.bethe, plain.mean_field),
    )
)
