"""Bars of long fits, with what the solver has measured."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import inf, isfinite, log
from typing import Any

from lmbm_torch.extras import naming_extras

__all__ = ["bar", "progress"]


@contextmanager
def bar(name: str, verbose: int) -> Iterator[Callable[[float, str], None] | None]:
    """A bar that is told the share that is done and what to write beside it, or None if none is wanted.

    Args:
        name: in front of the bar.
        verbose: 0 for none.

    Raises:
        ModuleNotFoundError: rich is not installed.
    """
    if not verbose:
        yield None
        return
    with naming_extras():
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[reached]}"),
        TimeElapsedColumn(),
    )
    # Without a thread of its own: the solver's chunks are what there is to show.
    with Progress(*columns, auto_refresh=False) as shown:
        task = shown.add_task(name, total=1.0, reached="")

        def tell(share: float, reached: str) -> None:
            shown.update(task, completed=share, reached=reached, refresh=True)

        yield tell


@contextmanager
def progress(name: str, verbose: int, tol: float) -> Iterator[Callable[[Any], None] | None]:
    """The callback for a solver's states, or None where nothing is to be shown.

    The bar is full where the gap is at most ``tol``, and grows with its logarithm, for most solvers multiply
    it by much the same share in every iteration.

    Args:
        name: see :func:`bar`, also for ``verbose`` and what is raised.
    """
    with bar(name, verbose) as tell:
        if tell is None:
            yield None
            return
        largest, tiny = -inf, sys.float_info.min

        def show(state: Any) -> None:
            nonlocal largest
            gap = max(float(state.gap), tiny)
            if not isfinite(gap):
                return
            largest = max(largest, gap)
            share = 1.0 if gap <= tol else log(largest / gap) / log(largest / tol)
            tell(share, f"gap {gap:.1e} of {tol:.1e}, {state.num_iters} iterations")

        yield show
