"""Comparisons of methods, as bars or as lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from lmbm_torch.checks import check_finite
from lmbm_torch.viz.style import COLOURS, open_frame


def bar_chart(panels: Mapping[str, Mapping[str, float]]) -> Figure:
    """One bar for each method, with its value at the end; one panel for each measure, side by side.

    Axes start at zero, since the lengths of bars are compared.

    Args:
        panels: measure → method → value; a method that a panel lacks leaves a gap there.

    Raises:
        ValueError: no panel, no method, values that are not finite.
    """
    methods = list(dict.fromkeys(name for values in panels.values() for name in values))
    if not methods:
        raise ValueError(f"panels: expected at least one with at least one method, got {dict(panels)}")
    for title, values in panels.items():
        check_finite(f"panels[{title!r}]", np.array(list(values.values()), np.float64))
    size = (1.5 + 2.2 * len(panels), 0.8 + 0.3 * len(methods))
    figure = Figure(figsize=size, layout="constrained")
    row = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axes, (title, values) in zip(row, panels.items(), strict=True):
        places = [methods.index(name) for name in values]
        bars = axes.barh(places, list(values.values()), color=COLOURS[0])
        axes.bar_label(bars, fmt="%.3f", padding=2, fontsize=8)
        axes.margins(x=0.25)
        if values and min(values.values()) >= 0 and 0.5 < max(values.values()) <= 1:
            # Shares: the space beyond 1 is for the numbers, and has no ticks.
            axes.set(xlim=(0, 1.25), xticks=(0, 0.5, 1))
        axes.set_title(title)
        open_frame(axes)
    _name_rows(row[0], methods)
    return figure


def method_bars(
    methods: Sequence[str], errors: Mapping[str, Sequence[float | None]], *, title: str, label: str
) -> Figure:
    """One group of bars for each method, one bar in it for each source of ``errors``.

    Args:
        methods: from top to bottom.
        errors: source, such as ours and a paper's, → one number for each method; None leaves a gap.

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
    _name_rows(axes, methods)
    axes.margins(x=0.12)
    axes.set(title=title, xlabel=label)
    open_frame(axes)
    # Inside the axes it would cover bars.
    figure.legend(frameon=False, loc="outside lower center", ncols=len(errors))
    return figure


def error_bars(errors: Mapping[str, Sequence[float]], *, what: str) -> Figure:
    """One bar for each method: the mean of its errors, and their standard deviation.

    Args:
        errors: method → its error in each fold; a single one has no deviation.
        what: the name of the axis.

    Raises:
        ValueError: no method, a method without errors, errors that are not finite.
    """
    if not errors or not all(len(each) for each in errors.values()):
        raise ValueError(f"errors: expected at least one method with errors, got {dict(errors)}")
    for method, each in errors.items():
        check_finite(f"errors[{method!r}]", np.asarray(each, float))
    means = [np.mean(each) for each in errors.values()]
    deviations = [np.std(each) for each in errors.values()]
    figure = Figure(figsize=(7.0, 1.0 + 0.4 * len(errors)), layout="constrained")
    axes = figure.add_subplot()
    bars = axes.barh(range(len(errors)), means, xerr=deviations, color=COLOURS[0], ecolor="0.3", capsize=3)
    axes.bar_label(bars, [f"{mean:.3f}" for mean in means], padding=6)
    _name_rows(axes, list(errors))
    axes.set(xlabel=what, xlim=(0, 1.2 * float(np.max(np.add(means, deviations)))))
    open_frame(axes)
    return figure


def error_curves(lines: Mapping[str, Mapping[float, float]], *, x_label: str, y_label: str) -> Figure:
    """One line for each name, through its points x → y.

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
    if all(float(place).is_integer() for points in lines.values() for place in points):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    open_frame(axes)
    figure.legend(frameon=False, loc="outside right upper")
    return figure


def _name_rows(axes: Axes, methods: Sequence[str]) -> None:
    """The first method on top, as in a table."""
    axes.set_yticks(range(len(methods)), methods)
    axes.invert_yaxis()
