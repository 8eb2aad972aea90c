"""Every curve is drawn, and drawn alike in all panels."""

from __future__ import annotations

import io

import pytest

from lmbm_torch.viz import learning_curves

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
