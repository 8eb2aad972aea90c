"""Predictions of seven-segment displays, drawn as displays."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

from lmbm_torch.checks import check_shape
from lmbm_torch.shapes import Float, Int
from lmbm_torch.viz.style import COLOURS, AnyScript

# Ends of the segments a … g in a display that is 1 wide and 2 high.
_SEGMENTS = np.array(
    [
        [(0, 2), (1, 2)],
        [(1, 2), (1, 1)],
        [(1, 1), (1, 0)],
        [(0, 0), (1, 0)],
        [(0, 1), (0, 0)],
        [(0, 2), (0, 1)],
        [(0, 1), (1, 1)],
    ],
    np.float64,
)
_GAP = 0.12
_UNLIT = "0.92"


def segment_displays(
    images: Float[np.ndarray, "images height width"],
    truth: Int[np.ndarray, "images 7"],
    answers: Mapping[str, Int[np.ndarray, "images 7"]],
) -> Figure:
    """A row of images, and below it a row of displays for each method; wrong segments are red.

    Args:
        images: 0 is white and 1 black.
        truth: segments a … g, 1 where lit.
        answers: method → its segments of each image.

    Raises:
        ValueError: no image, or answers of another shape than ``truth``.
    """
    check_shape("images", images, None, None, None)
    count = len(images)
    check_shape("truth", truth, count, 7)
    for method, labels in answers.items():
        check_shape(f"answers[{method!r}]", labels, count, 7)
    figure = AnyScript(figsize=(1.6 + 0.62 * count, 0.4 + 0.95 * (1 + len(answers))), layout="constrained")
    grid = figure.subplots(1 + len(answers), count, squeeze=False)
    for axes, image in zip(grid[0], images, strict=True):
        axes.imshow(image, cmap="gray_r", vmin=0, vmax=1)
    for row, labels in zip(grid[1:], answers.values(), strict=True):
        for axes, answer, right in zip(row, labels, truth, strict=True):
            _show(axes, answer.astype(np.bool_), right.astype(np.bool_))
    for axes in grid.flat:
        axes.set(xticks=[], yticks=[])
        axes.spines[:].set_visible(False)
    for axes, name in zip(grid[:, 0], ["image", *answers], strict=True):
        axes.set_ylabel(name, rotation=0, ha="right", va="center")
    return figure


def _show(axes: Axes, answer: np.ndarray, right: np.ndarray) -> None:
    """One display: lit segments are dark, wrongly lit ones red, wrongly unlit ones a thin red line."""
    middles = _SEGMENTS.mean(1, keepdims=True)
    ends = middles + (1 - _GAP) * (_SEGMENTS - middles)
    colours = np.where(answer, "black", _UNLIT)
    colours[answer != right] = COLOURS[1]
    widths = np.where(~answer & right, 1.2, 5.0)
    axes.add_collection(LineCollection(ends.tolist(), colors=colours.tolist(), linewidths=widths.tolist()))
    axes.set(xlim=(-0.5, 1.5), ylim=(-0.3, 2.3), aspect="equal")
