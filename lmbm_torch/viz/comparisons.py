"""Methods beside each other: their errors as bars, or as lines over what makes a problem harder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#f0e442", "#000000")


def method_bars(
    methods: Sequence[str], errors: Mapping[str, Sequence[float | None]], *, title: str, label: str
) -> Figure:
    """One group of horizontal bars for each method, one bar in it for each source of ``errors``.

    Args:
        methods: from top to bottom.
        errors: for each source, such as ours and a paper's, one number for each method; None leaves a gap.

    Raises:
        ValueError: no method, or another number of errors than of methods.
    """
    if not methods:
        raise ValueError("methods: expected at least one, got none")
    figure = Figure(figsize=(6.0, 0.8 + 0.24 * len(methods) * len(errors)), layout="constrained")
    axes = figure.add_subplot()
    thickness = 0.8 / len(errors)
    for number, (source, values) in enumerate(errors.items()):
        if len(values) != len(methods):
            raise ValueError(f"errors[{source!r}]: expected {len(methods)}, got {len(values)}")
        places = np.arange(len(methods)) + (number - (len(errors) - 1) / 2) * thickness
        widths = np.array([np.nan if value is None else value for value in values])
        bars = axes.barh(places, widths, thickness, color=COLOURS[number % len(COLOURS)], label=source)
        axes.bar_label(bars, ["" if value is None else f"{value:.3f}" for value in values], padding=2)
    axes.set_yticks(range(len(methods)), methods)
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.set(title=title, xlabel=label)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    return figure


def error_curves(lines: Mapping[str, Mapping[float, float]], *, x_label: str, y_label: str) -> Figure:
    """A line for each name, through its points x → y.

    Raises:
        ValueError: no line, or one without a point.
    """
    if not lines or not all(lines.values()):
        raise ValueError("lines: expected at least one, each with a point")
    figure = Figure(figsize=(6.0, 3.5), layout="constrained")
    axes = figure.add_subplot()
    for number, (name, points) in enumerate(lines.items()):
        places = sorted(points)
        values = [points[place] for place in places]
        axes.plot(places, values, marker="o", color=COLOURS[number % len(COLOURS)], label=name)
    axes.set(xlabel=x_label, ylabel=y_label)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    return figure
