"""Bars and lines stand at the numbers that they are given."""

from __future__ import annotations

import numpy as np
import pytest

from lmbm_torch.viz.comparisons import error_curves, method_bars


def test_bars_have_the_errors_lengths():
    errors = {"ours": [2.0, 1.5, 1.0], "paper": [1.9, None, 1.2]}
    axes = method_bars(["a", "b", "c"], errors, title="task", label="error").axes[0]
    assert [[bar.get_width() for bar in group] for group in axes.containers] == [
        [2.0, 1.5, 1.0],
        pytest.approx([1.9, float("nan"), 1.2], nan_ok=True),
    ]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["a", "b", "c"]
    assert axes.yaxis_inverted()


def test_lines_pass_through_their_points_in_order():
    axes = error_curves({"a": {2: 0.5, 1: 0.25}, "b": {1: 3.0}}, x_label="x", y_label="y").axes[0]
    assert [np.asarray(line.get_xydata()).tolist() for line in axes.lines] == [
        [[1, 0.25], [2, 0.5]],
        [[1, 3.0]],
    ]


def test_refusals():
    with pytest.raises(ValueError, match="methods"):
        method_bars([], {}, title="", label="")
    with pytest.raises(ValueError, match="'paper'"):
        method_bars(["a"], {"ours": [1.0], "paper": []}, title="", label="")
    with pytest.raises(ValueError, match="lines"):
        error_curves({"a": {}}, x_label="", y_label="")
