"""The style of all figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#f0e442", "#000000")
"""Safe for colour-blind readers."""


def open_frame(axes: Axes) -> None:
    """Remove the two sides of the frame without a scale."""
    axes.spines[["top", "right"]].set_visible(False)


def frames(
    width: float, height: float, rows: int = 1, columns: int = 1, **sharing: Any
) -> tuple[Figure, np.ndarray]:
    """A figure of this size in inches, and its ``(rows, columns)`` axes, with open frames.

    Args:
        sharing: arguments of ``Figure.subplots``, such as ``sharex``.
    """
    figure = Figure(figsize=(width, height), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False, **sharing)
    for axes in grid.flat:
        open_frame(axes)
    return figure, grid


def one_frame(width: float, height: float) -> tuple[Figure, Axes]:
    """A figure of this size in inches, and its only axes."""
    figure, grid = frames(width, height)
    return figure, grid[0, 0]


def name_rows(axes: Axes, names: Sequence[str]) -> None:
    """Names at 0, 1, … on the vertical axis, the first on top, as in a table."""
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
