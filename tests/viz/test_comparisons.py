"""Bars and lines stand at the numbers that they are given."""

from __future__ import annotations

import pytest

from lmbm_torch.viz.quality import bar_chart


def test_every_value_has_a_bar_and_a_number():
    figure = bar_chart({"E": {"one": 0.25, "two": 0.5}, "H": {"two": 0.125}})
    left, right = figure.axes
    (first, second), (only,) = ([bar.get_extents() for bar in axes.patches] for axes in (left, right))
    assert first.width * 2 == pytest.approx(second.width)
    assert [text.get_text() for text in left.texts] == ["0.250", "0.500"]
    assert (only.y0, only.y1) == (second.y0, second.y1)
    assert [label.get_text() for label in left.get_yticklabels()] == ["one", "two"]
    assert left.get_ylim()[0] > left.get_ylim()[1]
    assert left.get_xlim()[0] == 0


def test_the_scale_of_shares_ends_at_one():
    shares, errors, counts = bar_chart({"F1": {"one": 1.0}, "H": {"one": 0.1}, "n": {"one": 3.0}}).axes
    assert shares.get_xticks().max() == 1
    assert errors.get_xlim()[1] < 0.2
    assert counts.get_xlim()[1] > 3


def test_the_scale_of_what_is_said_to_be_shares_ends_at_one_whatever_they_are():
    figure = bar_chart({"F1": {"one": 0.0, "two": 0.0}, "H": {"one": 0.1}}, shares=("F1", "H"), title="two")
    for axes in figure.axes:
        assert axes.get_xlim()[0] == 0
        assert axes.get_xticks().tolist() == [0, 0.5, 1]
    assert figure.get_suptitle() == "two"
    for panels, message in (({"F1": {"one": 1.5}}, "expected shares"), ({"H": {"one": 0.1}}, "shares: ")):
        with pytest.raises(ValueError, match=message):
            bar_chart(panels, shares=("F1",))


@pytest.mark.parametrize("panels", [{}, {"E": {}}])
def test_no_methods_are_refused(panels):
    with pytest.raises(ValueError, match="panels: expected at least one"):
        bar_chart(panels)


def test_values_that_are_not_finite_are_refused_by_name():
    with pytest.raises(ValueError, match=r"panels\['E'\]: expected finite values"):
        bar_chart({"E": {"one": float("nan")}})
