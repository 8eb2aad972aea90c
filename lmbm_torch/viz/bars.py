"""Methods side by side."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure

from lmbm_torch.checks import check_finite


def bar_chart(panels: Mapping[str, Mapping[str, float]]) -> Figure:
    """One horizontal bar a method, with its value at the end; one panel a measure, side by side.

    Axes begin at zero, as lengths are what is compared.

    Args:
        panels: measure → method → value; methods that are not in every panel leave a gap there.

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
        bars = axes.barh(places, list(values.values()), color="#0072b2")
        axes.bar_label(bars, fmt="%.3f", padding=2, fontsize=8)
        axes.margins(x=0.25)
        axes.set(title=title, yticks=range(len(methods)), yticklabels=methods)
        axes.spines[["top", "right"]].set_visible(False)
    # The first method on top, as in a table.
    row[0].invert_yaxis()
    return figure
