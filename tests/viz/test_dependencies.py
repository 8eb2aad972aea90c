"""The heat map shows every weight where it belongs, on a scale around zero."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch

from lmbm_torch.viz.dependencies import coupling_heatmap, dependency_heatmap, transition_heatmap

ORDERING = [2, 0, 1]
NAMES = ("sun", "sea", "sand")
PARENTS = torch.tensor([[0.0, 0.0, 0.5], [-2.0, 0.0, 0.25], [0.0, 0.0, 0.0]])


def image(figure):
    return figure.axes[0].images[0]


def test_weights_are_in_topological_order():
    shown = image(dependency_heatmap(PARENTS, NAMES, ORDERING)).get_array()
    assert shown.mask.tolist() == np.triu(np.ones((3, 3), bool)).tolist()
    assert shown[np.tril_indices(3, -1)].tolist() == [0.5, 0.25, -2.0]


def test_names_and_numbers_follow_the_weights():
    axes = dependency_heatmap(PARENTS, NAMES, ORDERING).axes[0]
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["sand", "sun", "sea"]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["sand", "sun", "sea"]
    written = {text.get_position(): text.get_text() for text in axes.texts}
    assert written == {(0, 1): "0.50", (0, 2): "0.25", (1, 2): "-2.00"}


def test_zero_is_the_middle_of_the_colours():
    norm = image(dependency_heatmap(PARENTS, NAMES, ORDERING)).norm
    assert (norm.vmin, norm.vmax) == (-2.0, 2.0)


@pytest.mark.parametrize("count", [1, 14, 80])
def test_few_and_many_labels_without_dependence_can_be_drawn(count):
    figure = dependency_heatmap(np.zeros((count, count)), [f"label {i}" for i in range(count)], range(count))
    figure.savefig(io.BytesIO(), format="png")


@pytest.mark.parametrize(
    ("parents", "names", "ordering", "message"),
    [
        (PARENTS[:2], NAMES, ORDERING, "parents"),
        (PARENTS * torch.nan, NAMES, ORDERING, "parents"),
        (PARENTS, NAMES[:2], ORDERING, "label_names"),
        (PARENTS, NAMES, [0, 0, 1], "ordering"),
    ],
)
def test_refusals(parents, names, ordering, message):
    with pytest.raises(ValueError, match=message):
        dependency_heatmap(parents, names, ordering)


def test_couplings_stand_on_both_sides_of_a_grey_diagonal():
    couplings = np.array([[0.0, 0.5, -2.0], [0.5, 0.0, 0.25], [-2.0, 0.25, 0.0]])
    axes = coupling_heatmap(couplings, NAMES).axes[0]
    shown = axes.images[0].get_array()
    assert shown.mask.tolist() == np.eye(3, dtype=bool).tolist()
    assert shown.filled(0).tolist() == couplings.tolist()
    placed = {text.get_position(): text.get_text() for text in axes.texts}
    assert placed == {(j, i): f"{couplings[i, j]:.2f}" for i in range(3) for j in range(3) if i != j}
    assert coupling_heatmap(np.zeros((1, 1)), ["alone"]).axes
    with pytest.raises(ValueError, match="label_names: expected 3 names, got 1"):
        coupling_heatmap(couplings, ["alone"])


def test_transitions_are_shown_around_zero():
    weights = np.array([[1.0, -3.0], [0.5, 0.0]])
    axes, bar = transition_heatmap(weights, ("a", "b")).axes
    shown = axes.get_images()[0]
    np.testing.assert_array_equal(shown.get_array(), weights)
    assert shown.get_clim() == (-3, 3)
    assert [label.get_text() for label in axes.get_xticklabels()] == ["a", "b"]
    assert bar.get_ylabel() == "weight"


def test_transitions_that_cannot_be_shown_are_refused():
    with pytest.raises(ValueError, match="transition: expected shape"):
        transition_heatmap(np.ones((2, 3)), ("a", "b"))
    with pytest.raises(ValueError, match="transition: expected finite"):
        transition_heatmap(np.full((1, 1), np.nan), ("a",))
