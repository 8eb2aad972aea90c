"""Elimination orders: valid for every graph, of the least width where that is known."""

from __future__ import annotations

from itertools import combinations, permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmbm_torch.inference.trees.triangulation import Triangulation, by_index, degeneracy, min_fill

Cliques = tuple[tuple[int, ...], ...]


def grid(rows: int, columns: int) -> Cliques:
    """The pairs of a grid numbered column by column."""
    down = [(c * rows + r, c * rows + r + 1) for c in range(columns) for r in range(rows - 1)]
    across = [(c * rows + r, (c + 1) * rows + r) for c in range(columns - 1) for r in range(rows)]
    return tuple(down + across)


def cliques_of(num_labels: int) -> st.SearchStrategy[Cliques]:
    sets = [c for size in (2, 3) for c in combinations(range(num_labels), size)]
    return st.lists(st.sampled_from(sets), max_size=8).map(tuple) if sets else st.just(())


graphs = st.integers(1, 6).flatmap(lambda count: st.tuples(st.just(count), cliques_of(count)))


def least_width(num_labels: int, cliques: Cliques) -> int:
    """The treewidth, by every order there is."""
    widths = []
    for order in permutations(range(num_labels)):
        names = {label: place for place, label in enumerate(order)}
        renamed = tuple(tuple(names[label] for label in clique) for clique in cliques)
        widths.append(by_index(num_labels, renamed).treewidth)
    return min(widths)


@pytest.mark.parametrize("triangulate", [min_fill, by_index])
@given(graphs)
def test_orders_are_valid(triangulate, graph):
    num_labels, cliques = graph
    found: Triangulation = triangulate(num_labels, cliques)
    place = {label: index for index, label in enumerate(found.ordering)}
    assert sorted(found.ordering) == list(range(num_labels))
    for index, (label, *others) in enumerate(found.buckets):
        assert label == found.ordering[index]
        assert others == sorted(others, key=place.__getitem__)
        assert all(place[other] > index for other in others)
        # What is left of a bucket fits into the one that it reports to: the running intersection property.
        if others:
            assert set(others) <= set(found.buckets[place[others[0]]])
    for clique in cliques:
        assert set(clique) <= set(found.buckets[min(place[label] for label in clique)])


@given(st.integers(1, 5).flatmap(lambda count: st.tuples(st.just(count), cliques_of(count))))
def test_widths_and_their_lower_bound_meet_the_treewidth(graph):
    num_labels, cliques = graph
    width = least_width(num_labels, cliques)
    # On so few labels minimum fill misses nothing.
    assert degeneracy(num_labels, cliques) <= width == min_fill(num_labels, cliques).treewidth


@pytest.mark.parametrize(
    ("num_labels", "cliques", "width"),
    [
        (5, (), 0),
        (9, tuple((label // 2, label) for label in range(1, 9)), 1),
        (9, tuple((label, (label + 1) % 9) for label in range(9)), 2),
        (9, grid(3, 3), 3),
        (7, ((0, 2, 4, 6), (1, 6)), 3),
        (300, tuple(combinations(range(300), 2)), 299),
    ],
    ids=["empty", "tree", "cycle", "grid", "clique of four", "complete"],
)
def test_known_widths(num_labels, cliques, width):
    assert min_fill(num_labels, cliques).treewidth == width
    assert degeneracy(num_labels, cliques) <= width


def test_a_grid_numbered_by_columns_is_as_wide_as_a_column():
    assert by_index(40 * 6, grid(6, 40)).treewidth == 6
