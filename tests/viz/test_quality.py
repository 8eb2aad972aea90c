"""What the figures of a report show is what they were given."""

from __future__ import annotations

import numpy as np
import pytest

from lmbm_torch.viz.quality import MAX_BARS, change_chart, label_chart, reliability_diagram

SAID, TRUE, COUNT = np.array([0.1, 0.9]), np.array([0.25, 0.75]), np.array([4, 100])


def test_a_reliability_diagram_shows_shares_errors_and_counts():
    figure = reliability_diagram({"labels": (SAID, TRUE, COUNT), "rows": (SAID, TRUE, COUNT)})
    assert len(figure.axes) == 4
    above, below = figure.axes[0], figure.axes[2]
    assert above.get_title() == "labels"
    points = above.containers[0].lines[0]
    assert np.array_equal(points.get_xydata(), np.column_stack([SAID, TRUE]))
    (low, high) = above.containers[0].lines[2][0].get_segments()[0][:, 1]
    assert (high - low) / 2 == pytest.approx(np.sqrt(0.25 * 0.75 / 4))
    assert [bar.get_height() for bar in below.patches] == COUNT.tolist()
    figure.draw_without_rendering()


def test_changes_point_to_both_sides_and_unchanged_labels_are_left_out():
    figure = change_chart(("a", "b", "c"), np.array([1, 0, 5]), np.array([2, 0, 0]))
    (axes,) = figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["c", "a"]
    mended, broken = axes.containers
    assert [bar.get_width() for bar in mended] == [5, 1]
    assert [bar.get_width() for bar in broken] == [0, -2]
    figure.draw_without_rendering()
    assert axes.get_title() == ""
    count = MAX_BARS + 60
    many = change_chart([f"label {k}" for k in range(count)], np.arange(count), np.zeros(count, np.int64))
    assert len(many.axes[0].get_yticklabels()) == MAX_BARS
    assert many.axes[0].get_title() == f"the {MAX_BARS} most changed of {count - 1} labels"


@pytest.mark.parametrize("count", [45, MAX_BARS, MAX_BARS + 1])
def test_a_chart_of_labels_shows_all_or_says_how_many(count):
    names = [f"label {k}" for k in range(count)]
    figure = label_chart(names, np.arange(count), {"F1": np.zeros(count), "recall": np.linspace(0, 1, count)})
    shown = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    most = min(count, MAX_BARS)
    assert shown == names[::-1][:most]
    is_cut = count > MAX_BARS
    assert figure.get_suptitle() == (f"the {most} most frequent of {count} labels" if is_cut else "")
    assert [bar.get_width() for bar in figure.axes[1].patches] == np.linspace(0, 1, count)[::-1][
        :most
    ].tolist()
    assert figure.axes[0].get_xticks().max() == 1
    # A line of text for each.
    assert figure.get_size_inches()[1] / most >= 0.25
    with pytest.raises(ValueError, match="true: expected shape"):
        label_chart(names, np.arange(count - 1), {})


@pytest.mark.parametrize(
    ("panels", "message"),
    [
        ({}, "panels: expected at least one"),
        ({"a": (SAID[:0], TRUE[:0], COUNT[:0])}, r"panels\['a'\]: expected shape"),
        ({"a": (SAID * np.nan, TRUE, COUNT)}, r"panels\['a'\]: expected finite"),
        ({"a": (SAID, 2 * TRUE, COUNT)}, r"panels\['a'\]: expected probabilities, got 0.5 to 1.5"),
    ],
)
def test_what_is_no_probability_is_refused(panels, message):
    with pytest.raises(ValueError, match=message):
        reliability_diagram(panels)


def test_changes_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="mended: expected shape"):
        change_chart(("a",), np.array([1, 2]), np.array([1]))
    with pytest.raises(ValueError, match="expected at least one change"):
        change_chart(("a",), np.array([0]), np.array([0]))
