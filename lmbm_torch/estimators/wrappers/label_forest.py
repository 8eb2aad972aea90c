"""Forests of labels, in which each label needs the parent: coherent probabilities and label vectors."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from lmbm_torch.checks import check_shape
from lmbm_torch.constraints.rules import parents_by_path

ROOT = -1


@dataclass(frozen=True, eq=False)
class LabelForest:
    """A forest of labels, in which a label is present only if the parent is.

    Args:
        names: names of the labels.
        parents: (labels,), the index of each label's parent; ``ROOT`` for labels without a parent.

    Raises:
        ValueError: the parents form a circle.
    """

    names: tuple[str, ...]
    parents: np.ndarray

    def __post_init__(self) -> None:
        _ = self.order

    @classmethod
    def of(cls, hierarchy: str | Mapping[Any, Any], names: Sequence[str]) -> LabelForest:
        """Build the forest of a hierarchy.

        Args:
            hierarchy: a dictionary from labels to parents, by name or index; or the separator of names that
                are paths, such as ``"/"`` for 01/01/03.
            names: names of all labels.

        Raises:
            ValueError: a label is not among ``names``, or the parents form a circle.
        """
        given = parents_by_path(names, hierarchy) if isinstance(hierarchy, str) else hierarchy
        places: dict[Any, int] = {name: place for place, name in enumerate(names)}
        places |= {place: place for place in range(len(names))}
        parents = np.full(len(names), ROOT)
        for pair in given.items():
            unknown = [label for label in pair if not isinstance(label, Hashable) or label not in places]
            if unknown:
                raise ValueError(f"hierarchy: expected names or indices of labels, got {unknown[0]!r}")
            child, parent = pair
            parents[places[child]] = places[parent]
        return cls(tuple(names), parents)

    @cached_property
    def order(self) -> np.ndarray:
        """Return the indices of the labels in an order with each parent before the children, (labels,)."""
        depth = np.zeros(len(self.parents), int)
        above = self.parents.copy()
        while (above != ROOT).any():
            depth += above != ROOT
            if depth.max() >= len(depth):
                circle = [self.names[label] for label in np.flatnonzero(above != ROOT)]
                raise ValueError(f"hierarchy: expected no circle, got a circle above {circle[0]!r}")
            above = np.where(above == ROOT, ROOT, self.parents[above])
        return np.argsort(depth, kind="stable")

    def families(self) -> Iterator[tuple[int, np.ndarray]]:
        """Yield each parent with the children, from the roots, whose parent is ``ROOT``, to the leaves."""
        for parent in (ROOT, *self.order.tolist()):
            children = np.flatnonzero(self.parents == parent)
            if len(children):
                yield parent, children

    def check_closed(self, labels: np.ndarray) -> None:
        """Raise ValueError if a label vector of labels (instances, labels) has a label without the parent."""
        check_shape("y", labels, None, len(self.parents))
        rows, places = (labels[:, self._children] > labels[:, self._parents]).nonzero()
        if len(rows):
            child = self._children[places[0]]
            raise ValueError(
                f"y: expected labels together with their parents, got {self.names[child]!r} without "
                f"{self.names[self.parents[child]]!r} in row {rows[0]}"
            )

    def raised(self, probability: np.ndarray) -> np.ndarray:
        """Raise the probability of each label to that of the most probable descendant, (instances, labels).

        This is the max constraint module of Giunchiglia and Lukasiewicz (2020), eq. 1. Probabilities that
        obey the hierarchy stay unchanged.
        """
        probability = probability.copy()
        for label in self.order[::-1]:
            parent = self.parents[label]
            if parent != ROOT:
                np.maximum(probability[:, parent], probability[:, label], out=probability[:, parent])
        return probability

    def raised_from(self, probability: np.ndarray) -> np.ndarray:
        """Return for each label of an instance the label whose probability it gets by :meth:`raised`."""
        source = np.arange(len(probability))
        for label in self.order[::-1]:
            parent = self.parents[label]
            if parent != ROOT and probability[source[label]] > probability[source[parent]]:
                source[parent] = source[label]
        return source

    def multiplied(self, conditional: np.ndarray) -> np.ndarray:
        """Return P(label), (instances, labels), from P(label | parent)."""
        probability = conditional.copy()
        for label in self.order:
            if self.parents[label] != ROOT:
                probability[:, label] *= probability[:, self.parents[label]]
        return probability

    def conditionals(self, probability: np.ndarray) -> np.ndarray:
        """Return P(label | parent) from P(label) under the hierarchy; 0 if the parent has probability 0."""
        conditional = probability.copy()
        above = probability[:, self._parents]
        below = probability[:, self._children]
        conditional[:, self._children] = np.divide(below, above, where=above > 0, out=np.zeros_like(below))
        return conditional

    def given(self, conditional: np.ndarray, label: int, *, is_present: bool) -> np.ndarray:
        """Return the conditional probabilities given the value of one label, (instances, labels).

        Args:
            conditional: conditional probabilities before the value is known.
            label: index of the label, whose value must have a positive probability.
            is_present: the value of the label.
        """
        path = [label]
        while self.parents[path[-1]] != ROOT:
            path.append(self.parents[path[-1]])
        updated = conditional.copy()
        if is_present:
            updated[:, path] = 1
            return updated
        # P(ancestor is present and the label is absent), for each ancestor: the label needs its ancestors.
        probability = self.multiplied(conditional)
        alone = probability[:, path] - probability[:, [label]]
        above = np.hstack([alone[:, 1:], 1 - probability[:, [label]]])
        updated[:, path] = np.divide(alone, above, where=above > 0, out=np.zeros_like(alone))
        return updated

    def log_prob(self, conditional: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Return log P(labels) of each instance, (instances,); −∞ if a label is present without the parent.

        Given the ancestors, labels are independent: P(y) is the product of P(y_k | y_parent(k)).
        """
        present = np.ones(labels.shape, bool)
        present[:, self._children] = labels[:, self._parents] == 1
        chance = np.where(labels == 1, conditional, 1 - conditional)
        # If the parent is absent, the label is certainly absent.
        chance = np.where(present, chance, labels == 0)
        with np.errstate(divide="ignore"):
            return np.log(chance).sum(1)

    def most_probable(self, conditional: np.ndarray) -> np.ndarray:
        """Return the most probable label vectors (instances, labels), by dynamic programming."""
        with np.errstate(divide="ignore"):
            present, absent = np.log(conditional), np.log1p(-conditional)
        # From the leaves to the roots: the largest log-probability of each label's subtree if its parent is
        # present, once with the label and once without.
        for label in self.order[::-1]:
            if self.parents[label] != ROOT:
                present[:, self.parents[label]] += np.maximum(present[:, label], absent[:, label])
        labels = (present > absent).astype(np.int64)
        for label in self.order:
            if self.parents[label] != ROOT:
                labels[:, label] &= labels[:, self.parents[label]]
        return labels

    @cached_property
    def _children(self) -> np.ndarray:
        return np.flatnonzero(self.parents != ROOT)

    @cached_property
    def _parents(self) -> np.ndarray:
        return self.parents[self._children]
