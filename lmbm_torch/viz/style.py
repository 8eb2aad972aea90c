"""The style of all figures."""

from __future__ import annotations

from matplotlib.axes import Axes

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#f0e442", "#000000")
"""Safe for colour-blind readers."""


def open_frame(axes: Axes) -> None:
    """Remove the two sides of the frame without a scale."""
    axes.spines[["top", "right"]].set_visible(False)
