"""Comparisons of methods, as bars or intervals."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
from matplotlib.figure import Figure

from lmbm_torch.checks import check_finite
from lmbm_torch.viz.style import COLOURS, frames, name_rows

Interval = tuple[float, float, float]
"""A mean and both ends of the interval."""


def bar_chart(
    panels: Mapping[str, Mapping[str, float]], *, shares: Collection[str] = (), title: str = ""
) -> Figure:
    """Draw a panel for each measure, side by side, with a bar and its value for each method.

    Axes start at zero, since readers compare the lengths of bars.

    Args:
        panels: measure → method → value; if a panel lacks a method, there is a gap.
        shares: the measures whose axes always go from 0 to 1, like F1.
        title: the title above all panels.

    Raises:
        ValueError: there is no panel or method; a value is not finite; a measure of ``shares`` has no panel,
            or values outside [0, 1].

    Examples:
        >>> from lmbm_torch.viz import bar_chart
        >>> figure = bar_chart({"exact match": {"LMSBN": 0.71, "SVMs": 0.53}}, shares=["exact match"])
        >>> len(figure.axes)
        1
    """
    if strangers := set(shares) - set(panels):
        raise ValueError(f"shares: expected some of {list(panels)}, got {sorted(strangers)}")
    methods = list(dict.fromkeys(name for values in panels.values() for name in values))
    if not methods:
        raise ValueError(f"panels: expected at least one panel with at least one method, got {dict(panels)}")
    for measure, values in panels.items():
        check_finite(f"panels[{measure!r}]", np.array(list(values.values()), np.float64))
        if measure in shares and not all(0 <= value <= 1 for value in values.values()):
            raise ValueError(f"panels[{measure!r}]: expected shares between 0 and 1, got {dict(values)}")
    size = (1.5 + 2.2 * len(panels), 0.8 + 0.3 * len(methods) + 0.3 * bool(title))
    figure, (row,) = frames(*size, columns=len(panels), sharey=True)
    for axes, (measure, values) in zip(row, panels.items(), strict=True):
        places = [methods.index(name) for name in values]
        bars = axes.barh(places, list(values.values()), color=COLOURS[0])
        axes.bar_label(bars, fmt="%.3f", padding=2, fontsize=8)
        axes.margins(x=0.25)
        look_like_shares = values and min(values.values()) >= 0 and 0.5 < max(values.values()) <= 1
        if measure in shares or look_like_shares:
            # Room for the numbers beyond 1, without ticks.
            axes.set(xlim=(0, 1.25), xticks=(0, 0.5, 1))
        axes.set_title(measure)
    name_rows(row[0], methods)
    if title:
        figure.suptitle(title, fontsize="medium")
    return figure


def interval_plot(
    panels: Mapping[str, Mapping[str, Interval]], *, reference: str, differing: Mapping[str, Collection[str]]
) -> Figure:
    """Draw a panel for each measure, with a dot for each method's mean and a line for its interval.

    The reference has its own colour and a vertical line through its mean. Methods with a significant
    difference from the reference have full dots, all others hollow dots.

    Args:
        panels: measure → method → interval; the same methods in each panel.
        reference: the method for comparison.
        differing: measure → the methods with a significant difference from the reference.

    Raises:
        ValueError: there is no panel; panels have different methods; an interval is not finite or not around
            its mean; the reference is unknown.

    Examples:
        >>> from lmbm_torch.viz.comparisons import interval_plot
        >>> panels = {"exact match": {"LMSBN": (0.71, 0.69, 0.73), "SVMs": (0.53, 0.5, 0.56)}}
        >>> len(interval_plot(panels, reference="LMSBN", differing={"exact match": ["SVMs"]}).axes)
        1
    """
    if not panels:
        raise ValueError("panels: expected at least one panel, got none")
    methods = list(next(iter(panels.values())))
    if reference not in methods:
        raise ValueError(f"reference: expected one of {methods}, got {reference!r}")
    size = (2.2 + 2.1 * len(panels), 1.0 + 0.27 * len(methods))
    figure, (row,) = frames(*size, columns=len(panels), sharey=True)
    places = np.arange(len(methods))
    for axes, (measure, intervals) in zip(row, panels.items(), strict=True):
        if list(intervals) != methods:
            raise ValueError(f"panels[{measure!r}]: expected the methods {methods}, got {list(intervals)}")
        mean, low, high = np.array(list(intervals.values()), np.float64).T
        check_finite(f"panels[{measure!r}]", np.stack([mean, low, high]))
        if (low > mean).any() or (mean > high).any():
            raise ValueError(f"panels[{measure!r}]: expected means within intervals, got one outside")
        axes.axvline(mean[methods.index(reference)], color="0.8", linewidth=1, zorder=0)
        colours = [COLOURS[name == reference] for name in methods]
        axes.hlines(places, low, high, colors=colours, linewidth=1.5)
        full = [name == reference or name in differing[measure] for name in methods]
        faces = [colour if each else "white" for colour, each in zip(colours, full, strict=True)]
        axes.scatter(mean, places, s=28, c=faces, edgecolors=colours, linewidths=1.5, zorder=3)
        axes.set_title(measure)
        axes.tick_params(axis="y", length=0)
    name_rows(row[0], methods)
    note = f"mean and 95 % interval over splits; full dot: differs from {reference} (p < 0.05, Holm)"
    figure.supxlabel(note, fontsize="small")
    return figure
