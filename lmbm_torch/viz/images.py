"""Images: restored images, samples, weights of hidden units, and predictions of seven-segment displays."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from torch import Tensor

from lmbm_torch.checks import check_shape
from lmbm_torch.shapes import Float, Int, Shaped
from lmbm_torch.viz.style import COLOURS, AnyScript

# Both ends (x, y) of the segments a … g in a display of width 1 and height 2.
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


def image_rows(rows: Mapping[str, Shaped[Tensor, "images height width"]]) -> Figure:
    """Draw a row of images for each name (clean, corrupted, predicted); 0 is black and 1 white.

    Args:
        rows: the same number of images of the same size in each row.

    Raises:
        ValueError: there is no row or no image, or rows differ in shape.

    Examples:
        >>> import torch
        >>> from lmbm_torch.viz.images import image_rows
        >>> len(image_rows({"clean": torch.ones(3, 8, 8), "predicted": torch.zeros(3, 8, 8)}).axes)
        6
    """
    if not rows:
        raise ValueError("rows: expected at least one row of images, got none")
    first = next(iter(rows.values()))
    check_shape("rows", first, None, None, None)
    shape = first.shape
    for name, images in rows.items():
        check_shape(name, images, *shape)
    figure = AnyScript(figsize=(0.9 * shape[0] + 0.9, 0.95 * len(rows)), layout="constrained")
    grid = figure.subplots(len(rows), shape[0], squeeze=False)
    for line, (name, images) in zip(grid, rows.items(), strict=True):
        line[0].set_ylabel(name)
        for axes, image in zip(line, images.detach().float().cpu().numpy(), strict=True):
            axes.imshow(image, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
            axes.set(xticks=[], yticks=[])
    return figure


def image_grid(images: Shaped[Tensor, "images height width"]) -> Figure:
    """Draw images (for example samples of a model) in a square of rows; 0 is black and 1 white.

    Raises:
        ValueError: ``images`` has another shape, or no image.

    Examples:
        >>> import torch
        >>> from lmbm_torch.viz.images import image_grid
        >>> len(image_grid(torch.ones(9, 8, 8)).axes)
        1
    """
    check_shape("images", images, None, None, None)
    sheet, lines, columns = _sheet(images)
    figure = Figure(figsize=(0.7 * columns, 0.7 * lines), layout="constrained")
    axes = figure.add_subplot()
    # Pixels between the images are blue.
    colours = colormaps["gray"].with_extremes(bad="tab:blue")
    axes.imshow(sheet.numpy(), cmap=colours, vmin=0, vmax=1, interpolation="nearest")
    axes.set_axis_off()
    return figure


def weight_filters(filters: Float[Tensor, "hidden height width"]) -> Figure:
    """Draw the weights of each hidden unit as an image; all images share a symmetric scale, red above zero.

    Raises:
        ValueError: ``filters`` has another shape, or no hidden unit.

    Examples:
        >>> import torch
        >>> from lmbm_torch.viz.images import weight_filters
        >>> figure = weight_filters(torch.linspace(-1, 1, 128).reshape(2, 8, 8))
        >>> figure.axes[0].images[0].get_clim()
        (-1.0, 1.0)
    """
    check_shape("filters", filters, None, None, None)
    sheet, lines, columns = _sheet(filters)
    largest = float(filters.detach().abs().max())
    figure = Figure(figsize=(0.7 * columns + 1, 0.7 * lines), layout="constrained")
    axes = figure.add_subplot()
    shown = axes.imshow(sheet.numpy(), cmap="RdBu_r", vmin=-largest, vmax=largest, interpolation="nearest")
    axes.set_axis_off()
    figure.colorbar(shown, label="weight")
    return figure


def _sheet(images: Tensor) -> tuple[Tensor, int, int]:
    """Return the images side by side with NaN pixels between them, and the numbers of rows and columns."""
    columns = math.ceil(math.sqrt(len(images)))
    lines = math.ceil(len(images) / columns)
    _, height, width = images.shape
    sheet = torch.full((lines * (height + 1) - 1, columns * (width + 1) - 1), torch.nan, device="cpu")
    for number, image in enumerate(images.detach().float().cpu()):
        top, left = (number // columns) * (height + 1), (number % columns) * (width + 1)
        sheet[top : top + height, left : left + width] = image
    return sheet, lines, columns


def segment_displays(
    images: Float[np.ndarray, "images height width"],
    truth: Int[np.ndarray, "images 7"],
    answers: Mapping[str, Int[np.ndarray, "images 7"]],
) -> Figure:
    """Draw a row of images, and below a row of displays for each method; wrong segments are red.

    Args:
        images: the images; 0 is white and 1 black.
        truth: the true segments a … g, 1 for a lit segment.
        answers: method → predicted segments of each image.

    Raises:
        ValueError: there is no image, or answers have another shape than ``truth``.

    Examples:
        >>> import numpy as np
        >>> from lmbm_torch.viz.images import segment_displays
        >>> truth = np.ones((2, 7), int)
        >>> len(segment_displays(np.zeros((2, 8, 8)), truth, {"LMSBN": truth}).axes)
        4
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
    """Draw a display: lit segments dark, wrongly lit segments red, wrongly unlit segments thin and red."""
    middles = _SEGMENTS.mean(1, keepdims=True)
    ends = middles + (1 - _GAP) * (_SEGMENTS - middles)
    colours = np.where(answer, "black", _UNLIT)
    colours[answer != right] = COLOURS[1]
    widths = np.where(~answer & right, 1.2, 5.0)
    axes.add_collection(LineCollection(ends.tolist(), colors=colours.tolist(), linewidths=widths.tolist()))
    axes.set(xlim=(-0.5, 1.5), ylim=(-0.3, 2.3), aspect="equal")
