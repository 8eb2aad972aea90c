"""Elimination of variables in turn, by sums or maxima: message passing on a junction tree."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache, reduce
from math import prod
from operator import add
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lmbm_torch.inference.trees.triangulation import Cliques, Triangulation, by_index, min_fill
from lmbm_torch.shapes import Float, Int

# Largest number of graph structures whose layouts are cached.
NUM_LAYOUTS = 32


class _Incoming(NamedTuple):
    """Table or message that enters a bucket, which is the elimination of one variable.

    Args:
        index: the index of the table, or of the bucket that sends the message.
        shape: the shape along the bucket's axes (after the batch), 1 for variables that the table lacks.
    """

    index: int
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Layout:
    """Structure of an elimination: one bucket for each variable, with the tables and messages that it joins.

    Args:
        triangulation: the order of elimination.
        sizes: the number of values of each variable.
        scopes: the variables of each table.
        tables: for each bucket, the tables whose first eliminated variable is the bucket's variable.
        messages: for each bucket, the earlier buckets that send it a message.
    """

    triangulation: Triangulation
    sizes: tuple[int, ...]
    scopes: Cliques
    tables: tuple[tuple[_Incoming, ...], ...]
    messages: tuple[tuple[_Incoming, ...], ...]

    @property
    def buckets(self) -> Cliques:
        return self.triangulation.buckets

    @cached_property
    def entries(self) -> tuple[int, ...]:
        """Return the number of entries of the table that each bucket computes."""
        return tuple(prod(self.sizes[variable] for variable in bucket) for bucket in self.buckets)

    @cached_property
    def width(self) -> int:
        """Return the smallest w such that each table has at most 2^(w + 1) entries; with two values for
        each variable this is the width of the order.
        """
        return (max(self.entries, default=1) - 1).bit_length() - 1

    @cached_property
    def axes(self) -> tuple[tuple[int, ...], ...]:
        """Return the permutation of each table's axes to the order of elimination, with the batch first."""
        place = _places(self.triangulation)
        return tuple(
            (0, *(1 + axis for axis in sorted(range(len(scope)), key=lambda axis: place[scope[axis]])))
            for scope in self.scopes
        )

    def in_order(self, tables: list[Tensor]) -> list[Tensor]:
        """Reshape tables (batch, entries), and permute their variables to the order of elimination."""
        return [
            table.view(-1, *(self.sizes[variable] for variable in scope)).permute(axes)
            for table, scope, axes in zip(tables, self.scopes, self.axes, strict=True)
        ]


@lru_cache(NUM_LAYOUTS)
def layout_of(sizes: tuple[int, ...], scopes: Cliques) -> Layout:
    """Return the layout by minimum fill, or by the variables' numbers if that order is narrower."""
    orders = min_fill(len(sizes), scopes), by_index(len(sizes), scopes)
    return min((_layout(order, sizes, scopes) for order in orders), key=lambda layout: layout.width)


def _layout(triangulation: Triangulation, sizes: tuple[int, ...], scopes: Cliques) -> Layout:
    buckets, place = triangulation.buckets, _places(triangulation)

    def incoming(index: int, scope: tuple[int, ...], home: int) -> _Incoming:
        own = {*scope}
        return _Incoming(index, tuple(sizes[each] if each in own else 1 for each in buckets[home]))

    tables: list[list[_Incoming]] = [[] for _ in buckets]
    messages: list[list[_Incoming]] = [[] for _ in buckets]
    for index, scope in enumerate(scopes):
        home = min(place[variable] for variable in scope)
        tables[home].append(incoming(index, scope, home))
    for index, (_, *others) in enumerate(buckets):
        if others:
            home = place[others[0]]
            messages[home].append(incoming(index, tuple(others), home))
    return Layout(triangulation, sizes, scopes, tuple(map(tuple, tables)), tuple(map(tuple, messages)))


def _places(triangulation: Triangulation) -> dict[int, int]:
    return {variable: index for index, variable in enumerate(triangulation.ordering)}


class Tables(NamedTuple):
    """Input of an elimination.

    Args:
        layout: the layout of the tables of several variables.
        unary: log-potentials of the values of the first variables, one variable after another.
        num_unary: the number of these variables.
        tables: the tables of the layout's scopes, (batch or 1, values in the order of elimination).
    """

    layout: Layout
    unary: Float[Tensor, "batch entries"]
    num_unary: int
    tables: list[Tensor]


def eliminate(problem: Tables, combine: Callable[[Tensor], Tensor]) -> Float[Tensor, " batch"]:
    """Eliminate all variables in turn, by ``combine`` like logsumexp or max; return the total.

    The largest entry of each message is subtracted: messages do not grow with the number of variables.

    Args:
        problem: the tables.
        combine: a function from (batch, values, *others) to (batch, *others), which eliminates axis 1.
    """
    layout = problem.layout
    unary = problem.unary.split(layout.sizes[: problem.num_unary], 1)
    messages: list[Any] = []
    total = problem.unary.new_zeros(len(problem.unary))
    for index, (variable, *others) in enumerate(layout.buckets):
        tables = [problem.tables[table].reshape(-1, *shape) for table, shape in layout.tables[index]]
        for sender, shape in layout.messages[index]:
            tables.append(messages[sender].view(-1, *shape))
            # Drop each message after its only use, so that without gradients its memory is freed.
            messages[sender] = None
        if variable < len(unary):
            tables.append(unary[variable].view(-1, layout.sizes[variable], *[1] * len(others)))
        # Add small tables first, so that few of the sums are as large as the bucket's table.
        tables.sort(key=lambda table: table[0].numel())
        message = combine(reduce(add, tables))
        largest = message.detach().reshape(len(message), -1).amax(1)
        messages.append(message - largest.view(-1, *[1] * len(others)))
        total = total + largest
        if not others:
            total = total + messages[-1]
    return total


def traced(
    problem: Tables, combined: list[Tensor], num_samples: int, choose: Callable[[Tensor], Tensor]
) -> Int[Tensor, "num_samples batch variables"]:
    """Choose values in the reverse order of elimination, each given the values chosen before.

    Args:
        problem: the eliminated tables.
        combined: the inputs of ``combine`` in :func:`eliminate`, in order.
        num_samples: the number of labellings of each example.
        choose: a function from log-potentials (samples, batch, values) to the chosen values (samples, batch).
    """
    batch, sizes = len(problem.unary), problem.layout.sizes
    rows = torch.arange(batch, device=problem.unary.device)
    values = torch.zeros(num_samples, batch, len(sizes), dtype=torch.int64, device=rows.device)
    for (variable, *others), table in reversed(list(zip(problem.layout.buckets, combined, strict=True))):
        place = torch.zeros_like(values[..., 0])
        for other in others:
            place = sizes[other] * place + values[..., other]
        # Indices on both sides of the slice move the axis of values to the end.
        given = table.reshape(len(table), sizes[variable], -1).expand(batch, -1, -1)[rows, :, place]
        values[..., variable] = choose(given)
    return values
