"""Displays light what they are told, and wrong segments stand out."""

from __future__ import annotations

import io

import numpy as np
import pytest

from lmbm_torch.data import SevenSegment
from lmbm_torch.viz.images import segment_displays

IMAGES = np.zeros((2, 8, 8))
TRUTH = SevenSegment.codes()[[8, 1]].astype(int)


def drawn(axes):
    (segments,) = axes.collections
    return segments.get_colors(), segments.get_linewidths()


def test_right_answers_are_black_where_lit_and_pale_elsewhere():
    axes = segment_displays(IMAGES, TRUTH, {"exact": TRUTH}).axes
    eight, one = (drawn(each)[0] for each in axes[2:])
    assert (eight[:, :3] == 0).all()
    assert (one[:, 0] == 0).tolist() == [False, True, True, False, False, False, False]


def test_both_kinds_of_wrong_segments_are_red_and_missing_ones_thin():
    answers = TRUTH.copy()
    answers[0, 6], answers[1, 0] = 0, 1
    axes = segment_displays(IMAGES, TRUTH, {"greedy": answers}).axes
    (eight, eight_widths), (one, one_widths) = (drawn(each) for each in axes[2:])
    np.testing.assert_array_equal(eight[6], one[0])
    assert eight[6, 0] > eight[6, 2] > 0
    assert eight_widths[6] < eight_widths[0] == one_widths[0]


def test_rows_are_named_and_the_figure_can_be_saved():
    figure = segment_displays(IMAGES, TRUTH, {"one": TRUTH, "two": TRUTH})
    assert [figure.axes[row].get_ylabel() for row in (0, 2, 4)] == ["image", "one", "two"]
    figure.savefig(io.BytesIO(), format="png")


@pytest.mark.parametrize(
    ("images", "truth", "answers", "message"),
    [
        (IMAGES[0], TRUTH, {}, "images: expected shape"),
        (IMAGES, TRUTH[:1], {}, "truth: expected shape"),
        (IMAGES, TRUTH, {"one": TRUTH[:, :6]}, r"answers\['one'\]: expected shape"),
    ],
)
def test_refusals(images, truth, answers, message):
    with pytest.raises(ValueError, match=message):
        segment_displays(images, truth, answers)
