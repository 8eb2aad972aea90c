"""Every curve is drawn, and drawn alike in all panels."""

from __future__ import annotations

import io

import numpy as np
import pytest

from reproduce.figures import error_bars, error_curves, learning_curves

STEEP = ([0.0, 0.1, 1.0], [5.0, 1.0, 0.0])
SLOW = ([0.5, 2.0], [5.0, 4.0])


def test_points_without_a_place_on_logarithmic_axes_are_left_out():
    figure = learning_curves({"easy": {"ours": STEEP, "theirs": SLOW}, "hard": {"theirs": SLOW}})
    easy, hard = figure.axes
    assert [line.get_xydata().tolist() for line in easy.lines] == [[[0.1, 1.0]], [[0.5, 5.0], [2.0, 4.0]]]
    assert easy.lines[1].get_color() == hard.lines[0].get_color() != easy.lines[0].get_color()
    assert [axes.get_title() for axes in figure.axes] == ["easy", "hard"]
    figure.savefig(io.BytesIO(), format="png")


@pytest.mark.parametrize(
    ("panels", "message"),
    [
        ({}, "panels: expected at least one"),
        ({"a": {str(each): SLOW for each in range(5)}}, "at most 4 solvers, got 5"),
        ({"a": {"ours": ([1.0], [float("nan")])}}, "'ours'.*expected finite"),
        ({"a": {"ours": ([1.0], [])}}, r"values: expected shape \(1\), got \(0,\)"),
    ],
)
def test_refusals(panels, message):
    with pytest.raises(ValueError, match=message):
        learning_curves(panels)


def test_bars_are_means_with_deviations():
    figure = error_bars({"one": [0.1, 0.3], "two": [0.5]}, what="error")
    (axes,) = figure.axes
    assert [bar.get_width() for bar in axes.patches] == pytest.approx([0.2, 0.5])
    assert axes.get_xlabel() == "error"


def test_lines_pass_through_their_points_in_order():
    axes = error_curves({"a": {2: 0.5, 1: 0.25}, "b": {1: 3.0}}, x_label="x", y_label="y").axes[0]
    assert [np.asarray(line.get_xydata()).tolist() for line in axes.lines] == [
        [[1, 0.25], [2, 0.5]],
        [[1, 3.0]],
    ]
    # Between epochs there is nothing to mark.
    assert all(place.is_integer() for place in axes.get_xticks())


def test_lines_without_points_are_refused():
    with pytest.raises(ValueError, match="lines"):
        error_curves({"a": {}}, x_label="", y_label="")


@pytest.mark.parametrize("errors", [{}, {"one": []}])
def test_methods_without_errors_are_refused(errors):
    with pytest.raises(ValueError, match="errors: expected at least one"):
        error_bars(errors, what="error")


def test_errors_that_are_not_finite_are_refused_by_name():
    with pytest.raises(ValueError, match=r"errors\['one'\]: expected finite"):
        error_bars({"one": [np.nan]}, what="error")
