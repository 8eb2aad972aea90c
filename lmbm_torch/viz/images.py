"""Restored images, samples, and the weights of hidden units as images."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from matplotlib import colormaps
from matplotlib.figure import Figure
from torch import Tensor

from lmbm_torch.checks import check_shape
from lmbm_torch.shapes import Float, Shaped
from lmbm_torch.viz.style import AnyScript


def image_rows(rows: Mapping[str, Shaped[Tensor, "images height width"]]) -> Figure:
    """One row of images for each name, such as clean, corrupted and predicted; 0 is black and 1 white.

    Args:
        rows: the same number of images of the same size in each.

    Raises:
        ValueError: no row, no image, or rows of different shapes.
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
    """Images in a square of rows, such as samples of a model; 0 is black and 1 white.

    Raises:
        ValueError: another shape, or no image.
    """
    check_shape("images", images, None, None, None)
    sheet, lines, columns = _sheet(images)
    figure = Figure(figsize=(0.7 * columns, 0.7 * lines), layout="constrained")
    axes = figure.add_subplot()
    # What is between the images is in neither colour.
    colours = colormaps["gray"].with_extremes(bad="tab:blue")
    axes.imshow(sheet.numpy(), cmap=colours, vmin=0, vmax=1, interpolation="nearest")
    axes.set_axis_off()
    return figure


def weight_filters(filters: Float[Tensor, "hidden height width"]) -> Figure:
    """The weights of each hidden unit as an image, on one symmetric scale, red above zero.

    Raises:
        ValueError: another shape, or no hidden unit.
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
    """Images side by side, a pixel of NaN between them; how many rows and columns they take."""
    columns = math.ceil(math.sqrt(len(images)))
    lines = math.ceil(len(images) / columns)
    _, height, width = images.shape
    sheet = torch.full((lines * (height + 1) - 1, columns * (width + 1) - 1), torch.nan, device="cpu")
    for number, image in enumerate(images.detach().float().cpu()):
        top, left = (number // columns) * (height + 1), (number % columns) * (width + 1)
        sheet[top : top + height, left : left + width] = image
    return sheet, lines, columns
