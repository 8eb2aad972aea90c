"""The bars are as long as the values, in the order of the methods."""

from __future__ import annotations

import pytest

from lmbm_torch.viz import bar_chart


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


@pytest.mark.parametrize("panels", [{}, {"E": {}}])
def test_no_methods_are_refused(panels):
    with pytest.raises(ValueError, match="panels: expected at least one"):
        bar_chart(panels)


def test_values_that_are_not_finite_are_refused_by_name():
    with pytest.raises(ValueError, match=r"panels\['E'\]: expected finite values"):
        bar_chart({"E": {"one": float("nan")}})
