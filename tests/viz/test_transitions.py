from __future__ import annotations

import numpy as np
import pytest

from lmbm_torch.viz.transitions import error_bars, transition_heatmap


def test_the_heat_map_shows_the_weights_around_zero():
    weights = np.array([[1.0, -3.0], [0.5, 0.0]])
    axes, bar = transition_heatmap(weights, ("a", "b")).axes
    image = axes.get_images()[0]
    np.testing.assert_array_equal(image.get_array(), weights)
    assert image.get_clim() == (-3, 3)
    assert [label.get_text() for label in axes.get_xticklabels()] == ["a", "b"]
    assert bar.get_ylabel() == "weight"


def test_bars_are_means_with_deviations():
    figure = error_bars({"one": [0.1, 0.3], "two": [0.5]}, what="error")
    (axes,) = figure.axes
    assert [bar.get_width() for bar in axes.patches] == pytest.approx([0.2, 0.5])
    assert axes.get_xlabel() == "error"


def test_refusals():
    with pytest.raises(ValueError, match="transition: expected shape"):
        transition_heatmap(np.ones((2, 3)), ("a", "b"))
    with pytest.raises(ValueError, match="transition: expected finite"):
        transition_heatmap(np.full((1, 1), np.nan), ("a",))
    for errors in ({}, {"one": []}):
        with pytest.raises(ValueError, match="errors: expected at least one"):
            error_bars(errors, what="error")
    with pytest.raises(ValueError, match=r"errors\['one'\]: expected finite"):
        error_bars({"one": [np.nan]}, what="error")
