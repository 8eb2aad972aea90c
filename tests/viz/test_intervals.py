"""Dots where the means are, lines where the intervals are, full where methods differ."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.colors import to_hex

from lmbm_torch.viz.quality import interval_plot
from lmbm_torch.viz.style import COLOURS

PANELS = {
    "exact match": {"chain": (0.6, 0.5, 0.7), "network": (0.7, 0.65, 0.75), "forest": (0.4, 0.3, 0.5)},
    "Hamming loss": {"chain": (0.1, 0.1, 0.1), "network": (0.1, 0.0, 0.2), "forest": (0.2, 0.1, 0.3)},
}
DIFFERING = {"exact match": {"forest"}, "Hamming loss": set()}


def test_what_is_drawn_is_what_was_measured():
    figure = interval_plot(PANELS, reference="network", differing=DIFFERING)
    assert [axes.get_title() for axes in figure.axes] == list(PANELS)
    for axes, intervals in zip(figure.axes, PANELS.values(), strict=True):
        lines, dots = axes.collections
        places = [(mean, row) for row, (mean, _, _) in enumerate(intervals.values())]
        assert np.allclose(dots.get_offsets(), places)
        ends = [segment[:, 0] for segment in lines.get_segments()]
        assert np.allclose(ends, [(low, high) for _, low, high in intervals.values()])
        assert axes.lines[0].get_xdata()[0] == intervals["network"][0]
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["chain", "network", "forest"]


@pytest.mark.parametrize(("panel", "forest"), [(0, COLOURS[0]), (1, "#ffffff")])
def test_dots_are_full_where_methods_differ(panel, forest):
    figure = interval_plot(PANELS, reference="network", differing=DIFFERING)
    faces = figure.axes[panel].collections[1].get_facecolors()
    assert [to_hex(face) for face in faces] == ["#ffffff", COLOURS[1], forest]


@pytest.mark.parametrize(
    ("panels", "message"),
    [
        ({}, "panels: expected at least one panel, got none"),
        ({"exact match": {"chain": (0.6, 0.5, 0.7)}}, "reference: expected one of .*'chain'.*'network'"),
        ({"exact match": {"network": (0.6, 0.7, 0.8)}}, "expected means within intervals"),
        ({"exact match": {"network": (np.nan, 0.7, 0.8)}}, "expected finite values, got 1 NaN"),
        ({**PANELS, "macro F1": {"network": (0.6, 0.5, 0.7)}}, r"panels\['macro F1'\]: expected the methods"),
    ],
)
def test_what_cannot_be_drawn_is_refused(panels, message):
    with pytest.raises(ValueError, match=message):
        interval_plot(panels, reference="network", differing=dict.fromkeys(panels, ()))
