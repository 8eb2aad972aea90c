"""A given directed acyclic graph of labels: names, a matrix, or a graph of networkx."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Any

import numpy as np

from lmbm_torch.checks import check_shape


def parent_matrix(parents: Any, num_labels: int, names: Sequence[str] | None) -> np.ndarray:
    """Return (labels, labels), True where the row's label has the column's label as parent.

    Args:
        parents: the matrix; or {label: its parents}; or a graph with ``edges`` parent → child, such as
            ``networkx.DiGraph``. Labels are names or numbers.
        names: of the labels, (labels,); None for numbers alone.

    Raises:
        ValueError: a matrix of another shape or with other values than 0 and 1, an unknown label, an
            undirected graph, a circle.
    """
    if isinstance(parents, Mapping):
        arrows = [(parent, child) for child, given in parents.items() for parent in given]
    elif hasattr(parents, "edges"):
        if not parents.is_directed():
            raise ValueError("parents: expected a directed graph, got an undirected one")
        arrows = [(parent, child) for parent, child in parents.edges]
    else:
        matrix = np.asarray(parents)
        check_shape("parents", matrix, num_labels, num_labels)
        if not np.isin(matrix, (0, 1)).all():
            raise ValueError("parents: expected a matrix of 0 and 1, got other values")
        _check_acyclic(matrix.astype(bool))
        return matrix.astype(bool)
    place: dict[Any, int] = {label: label for label in range(num_labels)}
    place |= {name: label for label, name in enumerate(names or ())}
    found = np.zeros((num_labels, num_labels), bool)
    for parent, child in arrows:
        for label in (parent, child):
            if label not in place:
                raise ValueError(f"parents: expected names or numbers of the labels, got {label!r}")
        found[place[child], place[parent]] = True
    _check_acyclic(found)
    return found


def topological(parents: np.ndarray) -> np.ndarray:
    """Return the labels in an order with parents first, among free labels the least number first."""
    waiting, order = parents.copy(), []
    left = np.ones(len(parents), bool)
    while left.any():
        label = int(np.flatnonzero(left & ~waiting.any(1))[0])
        order.append(label)
        left[label], waiting[:, label] = False, False
    return np.array(order)


def _check_acyclic(parents: np.ndarray) -> None:
    try:
        TopologicalSorter(
            {label: np.flatnonzero(row).tolist() for label, row in enumerate(parents)}
        ).prepare()
    except CycleError as error:
        raise ValueError(f"parents: expected no circle of labels, got {error.args[1]}") from None
