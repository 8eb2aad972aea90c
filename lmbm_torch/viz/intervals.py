"""Comparisons of methods with intervals."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
from matplotlib.figure import Figure

from lmbm_torch.checks import check_finite
from lmbm_torch.viz.style import COLOURS, open_frame

Interval = tuple[float, float, float]
"""A mean and the two ends of its interval."""


def interval_plot(
    panels: Mapping[str, Mapping[str, Interval]],
    *,
    reference: str,
    differing: Mapping[str, Collection[str]],
) -> Figure:
    """A dot for each method's mean and a line for its interval; one panel for each measure, side by side.

    The reference has its own colour and a vertical line through its mean. Methods that differ from it
    significantly have full dots, the others hollow ones.

    Args:
        panels: measure → method → its interval; the same methods in each.
        reference: the method that the others are compared with.
        differing: measure → the methods that differ from the reference significantly.

    Raises:
        ValueError: no panel, panels of different methods, intervals that are not finite or not around their
            mean, or a reference that is none of the methods.
    """
    if not panels:
        raise ValueError("panels: expected at least one, got none")
    methods = list(next(iter(panels.values())))
    if reference not in methods:
        raise ValueError(f"reference: expected one of {methods}, got {reference!r}")
    size = (2.2 + 2.1 * len(panels), 1.0 + 0.27 * len(methods))
    figure = Figure(figsize=size, layout="constrained")
    row = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    places = np.arange(len(methods))
    for axes, (measure, intervals) in zip(row, panels.items(), strict=True):
        if list(intervals) != methods:
            raise ValueError(f"panels[{measure!r}]: expected the methods {methods}, got {list(intervals)}")
        mean, low, high = np.array(list(intervals.values()), np.float64).T
        check_finite(f"panels[{measure!r}]", np.stack([mean, low, high]))
        if (low > mean).any() or (mean > high).any():
            raise ValueError(f"panels[{measure!r}]: expected each mean within its interval")
        axes.axvline(mean[methods.index(reference)], color="0.8", linewidth=1, zorder=0)
        colours = [COLOURS[name == reference] for name in methods]
        axes.hlines(places, low, high, colors=colours, linewidth=1.5)
        full = [name == reference or name in differing[measure] for name in methods]
        faces = [colour if each else "white" for colour, each in zip(colours, full, strict=True)]
        axes.scatter(mean, places, s=28, c=faces, edgecolors=colours, linewidths=1.5, zorder=3)
        axes.set_title(measure)
        axes.tick_params(axis="y", length=0)
        open_frame(axes)
    row[0].set_yticks(places, methods)
    row[0].invert_yaxis()
    note = f"mean and 95 % interval over splits; full dot: differs from {reference} (p < 0.05, Holm)"
    figure.supxlabel(note, fontsize="small")
    return figure
