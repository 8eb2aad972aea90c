"""Orders in which to eliminate the labels of a sparse graph; the largest table has 2^(width + 1) entries."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache, reduce
from operator import or_

Cliques = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Triangulation:
    """Order of elimination, and the labels that each elimination couples.

    Args:
        ordering: all labels, in the order of elimination.
        buckets: for each place in ``ordering``, the label, followed by the labels that it is coupled with
            when it is eliminated, in the order of elimination.
    """

    ordering: tuple[int, ...]
    buckets: tuple[tuple[int, ...], ...]

    @property
    def treewidth(self) -> int:
        """Return the width of the order, an upper bound of the treewidth, which is NP-hard to compute."""
        return max(map(len, self.buckets)) - 1


def min_fill(num_labels: int, cliques: Cliques) -> Triangulation:
    """Return the order that always eliminates the label that causes the fewest new couplings.

    The order is optimal on trees and cycles. At ties, the label with the fewest neighbours is eliminated,
    then the label with the smallest number. The bucket of a clique's first label contains the whole clique.

    Args:
        num_labels: the number of labels.
        cliques: sets of labels that depend on each other directly.
    """
    neighbours = _neighbours(num_labels, cliques)
    fill = [_fill(neighbours, label) for label in range(num_labels)]
    remaining, eliminated = set(range(num_labels)), []
    while remaining:
        label = min(remaining, key=lambda one: (fill[one], neighbours[one].bit_count(), one))
        if neighbours[label].bit_count() == len(remaining) - 1 and not fill[label]:
            # All remaining labels are coupled with each other, so any order will do.
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
    """Return the order of the labels' numbers, good for sequences, and for grids numbered by columns.

    Args:
        num_labels: the number of labels.
        cliques: see :func:`min_fill`.
    """
    neighbours, eliminated = _neighbours(num_labels, cliques), []
    for label in range(num_labels):
        eliminated.append((label, neighbours[label]))
        _eliminate(neighbours, label)
    return _triangulation(eliminated)


def narrowest(num_labels: int, cliques: Cliques) -> Triangulation:
    """Return the order of smaller width among :func:`min_fill` and :func:`by_index`.

    Args:
        num_labels: the number of labels.
        cliques: see :func:`min_fill`.
    """
    orders = min_fill(num_labels, cliques), by_index(num_labels, cliques)
    return min(orders, key=lambda order: order.treewidth)


@lru_cache
def degeneracy(num_labels: int, cliques: Cliques) -> int:
    """Return the largest minimum degree of any subgraph, a lower bound of the treewidth.

    Args:
        num_labels: the number of labels.
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


def is_forest(num_nodes: int, edges: Iterable[tuple[int, int]]) -> bool:
    """Return whether the edges between numbered nodes form no cycle."""
    home = [*range(num_nodes)]

    def root(node: int) -> int:
        while home[node] != node:
            home[node] = home[home[node]]
            node = home[node]
        return node

    for one, other in edges:
        one, other = root(one), root(other)
        if one == other:
            return False
        home[one] = other
    return True


def _neighbours(num_labels: int, cliques: Cliques) -> list[int]:
    """Return for each label a bit mask of the labels that share a clique with it."""
    neighbours = [0] * num_labels
    for clique in cliques:
        together = _mask(clique)
        for label in clique:
            neighbours[label] |= together & ~(1 << label)
    return neighbours


def _eliminate(neighbours: list[int], label: int) -> list[int]:
    """Couple a label's neighbours with each other, and remove the label, in place; return the neighbours."""
    around = _members(neighbours[label])
    for other in around:
        neighbours[other] = (neighbours[other] | neighbours[label]) & ~(1 << other | 1 << label)
    return around


def _triangulation(eliminated: list[tuple[int, int]]) -> Triangulation:
    """Convert labels and bit masks of their neighbours at elimination to a :class:`Triangulation`."""
    ordering = tuple(label for label, _ in eliminated)
    place = {label: index for index, label in enumerate(ordering)}
    buckets = tuple((label, *sorted(_members(around), key=place.__getitem__)) for label, around in eliminated)
    return Triangulation(ordering, buckets)


def _fill(neighbours: list[int], label: int) -> int:
    """Return twice the number of pairs of a label's neighbours that are not coupled."""
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
