"""How labels are summed out one after another where what a label joins is too large for one table.

A label's bucket holds all that depends on it when its turn comes: cliques, and messages of labels before it.
Where these join more labels than a table may have, the bucket is split into parts, each with a copy of the
label and a message of its own (Dechter and Rish, Mini-buckets: a general scheme for bounded inference, 2003).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

from lmbm_torch.inference.parts.triangulation import Cliques, axes_among, narrowest

__all__ = ["Bucket", "Part", "buckets_of"]

# Structures whose buckets are kept.
NUM_STRUCTURES = 32


@dataclass(frozen=True)
class Part:
    """A table of a label and some that come after it.

    Args:
        scope: the label itself, then the others in the order of their own elimination.
        cliques: those that it takes in, by their place among all.
        messages: the places of earlier parts whose messages it takes in, each with its axes among the
            table's, of size 1 where it says nothing.
    """

    scope: tuple[int, ...]
    cliques: tuple[int, ...]
    messages: tuple[tuple[int, tuple[int, ...]], ...]


@dataclass(frozen=True)
class Bucket:
    """A label, and the parts that it is summed out of; a part's place counts all parts of all buckets."""

    label: int
    parts: tuple[Part, ...]


@dataclass
class _Open:
    """A part that still takes in more."""

    scope: set[int]
    cliques: list[int] = field(default_factory=list)
    messages: list[int] = field(default_factory=list)


@lru_cache(NUM_STRUCTURES)
def buckets_of(num_labels: int, cliques: Cliques, width: int) -> tuple[Bucket, ...]:
    """The buckets in their order of elimination, that of least width among two.

    Args:
        num_labels: K.
        cliques: sets of labels, each of at most ``width`` + 1.
        width: the most labels beside its own in a part's table.
    """
    ordering = narrowest(num_labels, tuple(clique for clique in cliques if len(clique) > 1)).ordering
    place = {label: index for index, label in enumerate(ordering)}
    cliques_of: list[list[int]] = [[] for _ in ordering]
    for index, clique in enumerate(cliques):
        cliques_of[min(place[label] for label in clique)].append(index)
    messages_of: list[list[int]] = [[] for _ in ordering]
    scopes: list[tuple[int, ...]] = []
    buckets = []
    for index, label in enumerate(ordering):
        parts = []
        for found in _split(label, cliques, cliques_of[index], scopes, messages_of[index], width):
            scope = tuple(sorted(found.scope, key=place.__getitem__))
            messages = tuple((sender, axes_among(scopes[sender], scope)) for sender in found.messages)
            parts.append(Part(scope, tuple(found.cliques), messages))
            if len(scope) > 1:
                messages_of[place[scope[1]]].append(len(scopes))
            scopes.append(scope[1:])
        buckets.append(Bucket(label, tuple(parts)))
    return tuple(buckets)


def _split(
    label: int, cliques: Cliques, own: list[int], scopes: list[tuple[int, ...]], heard: list[int], width: int
) -> list[_Open]:
    """Messages and cliques by decreasing size, each into the part that grows least by it and has room."""
    parts: list[_Open] = []

    def part_for(scope: tuple[int, ...]) -> _Open:
        fitting = [part for part in parts if len(part.scope.union(scope)) <= width + 1]
        if not fitting:
            parts.append(_Open(set()))
            fitting = parts[-1:]
        best = min(fitting, key=lambda part: len(part.scope.union(scope)) - len(part.scope))
        best.scope.update(scope)
        return best

    for sender in sorted(heard, key=lambda sender: -len(scopes[sender])):
        part_for(scopes[sender]).messages.append(sender)
    for clique in sorted(own, key=lambda clique: -len(cliques[clique])):
        part_for(cliques[clique]).cliques.append(clique)
    return parts or [_Open({label})]
