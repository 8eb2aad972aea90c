"""Orders in which the labels of a sparse graph can be summed out, at the price of tables of 2^(width + 1)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache, reduce
from operator import or_

__all__ = ["Cliques", "Triangulation", "axes_among", "by_index", "degeneracy", "min_fill", "narrowest"]

Cliques = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Triangulation:
    """An order of elimination, and what each label's elimination joins.

    Args:
        ordering: every label, the first to be eliminated first.
        buckets: for each place in ``ordering`` its label, then the labels that it is coupled with when its
            turn comes, in the order of their own.
    """

    ordering: tuple[int, ...]
    buckets: tuple[tuple[int, ...], ...]

    @property
    def treewidth(self) -> int:
        """The width of this order, at least the graph's treewidth: finding the least is NP-hard."""
        return max(map(len, self.buckets)) - 1


def min_fill(num_labels: int, cliques: Cliques) -> Triangulation:
    """Eliminate the label next that couples the fewest of its neighbours anew; optimal on trees and cycles.

    Of equals goes the one with the fewest neighbours, then the first. Every clique ends up inside the bucket
    of its first label in the order.

    Args:
        num_labels: K.
        cliques: sets of labels that depend on each other directly.
    """
    neighbours = _neighbours(num_labels, cliques)
    fill = [_fill(neighbours, label) for label in range(num_labels)]
    remaining, eliminated = set(range(num_labels)), []
    while remaining:
        label = min(remaining, key=lambda one: (fill[one], neighbours[one].bit_count(), one))
        if neighbours[label].bit_count() == len(remaining) - 1 and not fill[label]:
            # All that remain are coupled with each other: no order of them is better than another.
            rest = sorted(remaining)
            eliminated += [(label, _mask(rest[index + 1 :])) for index, label in enumerate(rest)]
            break
        remaining.remove(label)
        eliminated.append((label, neighbours[label]))
        around = _eliminate(neighbours, label)
        for other in set(around).union(*(_members(neighbours[other]) for other in around)):
            fill[other] = _fill(neighbours, other)
    return _triangulation(eliminated)


def by_index(num_labels: int, cliques: Cliques) -> Triangulation:
    """Eliminate labels as they are numbered: hard to beat where that follows a grid's columns or a sequence.

    Args:
        num_labels: K.
        cliques: see :func:`min_fill`.
    """
    neighbours, eliminated = _neighbours(num_labels, cliques), []
    for label in range(num_labels):
        eliminated.append((label, neighbours[label]))
        _eliminate(neighbours, label)
    return _triangulation(eliminated)


def narrowest(num_labels: int, cliques: Cliques) -> Triangulation:
    """That of :func:`min_fill` or of :func:`by_index`, whichever is narrower.

    Args:
        num_labels: K.
        cliques: see :func:`min_fill`.
    """
    orders = min_fill(num_labels, cliques), by_index(num_labels, cliques)
    return min(orders, key=lambda order: order.treewidth)


def axes_among(labels: Iterable[int], table: tuple[int, ...]) -> tuple[int, ...]:
    """The sizes of a table's axes for one of these labels alone: 2 for each of them, 1 for all others."""
    own = {*labels}
    return tuple(2 if label in own else 1 for label in table)


@lru_cache
def degeneracy(num_labels: int, cliques: Cliques) -> int:
    """The largest number of neighbours that the least coupled label of a subgraph has: no treewidth is less.

    Args:
        num_labels: K.
        cliques: see :func:`min_fill`.
    """
    neighbours = [set(_members(mask)) for mask in _neighbours(num_labels, cliques)]
    remaining, bound = set(range(num_labels)), 0
    while remaining:
        label = min(remaining, key=lambda one: len(neighbours[one]))
        bound = max(bound, len(neighbours[label]))
        remaining.remove(label)
        for other in neighbours[label]:
            neighbours[other].remove(label)
    return bound


def _neighbours(num_labels: int, cliques: Cliques) -> list[int]:
    """For each label the labels that it shares a clique with, as the bits of a number."""
    neighbours = [0] * num_labels
    for clique in cliques:
        together = _mask(clique)
        for label in clique:
            neighbours[label] |= together & ~(1 << label)
    return neighbours


def _eliminate(neighbours: list[int], label: int) -> list[int]:
    """Couple a label's neighbours with each other and forget it, in place; the neighbours."""
    around = _members(neighbours[label])
    for other in around:
        neighbours[other] = (neighbours[other] | neighbours[label]) & ~(1 << other | 1 << label)
    return around


def _triangulation(eliminated: list[tuple[int, int]]) -> Triangulation:
    """Labels as they went, each with the neighbours that it had then."""
    ordering = tuple(label for label, _ in eliminated)
    place = {label: index for index, label in enumerate(ordering)}
    buckets = tuple((label, *sorted(_members(around), key=place.__getitem__)) for label, around in eliminated)
    return Triangulation(ordering, buckets)


def _fill(neighbours: list[int], label: int) -> int:
    """Twice the pairs of a label's neighbours that are not coupled."""
    around = neighbours[label]
    return sum((around & ~neighbours[other]).bit_count() - 1 for other in _members(around))


def _mask(labels: Iterable[int]) -> int:
    return reduce(or_, (1 << label for label in labels), 0)


def _members(mask: int) -> list[int]:
    members = []
    while mask:
        lowest = mask & -mask
        members.append(lowest.bit_length() - 1)
        mask ^= lowest
    return members
