"""Figures of tables: convergence of solvers over time, errors of methods and along an axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from lmbm_torch.checks import check_finite, check_shape
from lmbm_torch.viz.style import COLOURS, frames, name_rows, one_frame

Curve = tuple[Sequence[float], Sequence[float]]
"""Seconds, and the distance to the optimum at each."""

# Each solver has its own dashes as well as its own colour.
STYLES = tuple(zip(COLOURS, ("-", "--", "-.", ":"), strict=False))


def learning_curves(panels: Mapping[str, Mapping[str, Curve]], *, left: str = "above the optimum") -> Figure:
    """Return the distance to the optimum against time, both on logarithmic axes; one panel below the other.

    Args:
        panels: title → solver → its curve; at most as many solvers as there are ``STYLES``. Points with a
            time or a value of zero or less are left out: logarithmic axes cannot show them.
        left: the name of the values.

    Raises:
        ValueError: no panel, too many solvers, curves of different lengths or with values not finite.
    """
    if not panels:
        raise ValueError("panels: expected at least one, got none")
    solvers = list(dict.fromkeys(name for curves in panels.values() for name in curves))
    if len(solvers) > len(STYLES):
        raise ValueError(f"panels: expected at most {len(STYLES)} solvers, got {len(solvers)}")
    figure, grid = frames(6.0, 1.0 + 2.2 * len(panels), rows=len(panels), sharex=True)
    column = grid[:, 0]
    for axes, (title, curves) in zip(column, panels.items(), strict=True):
        for name, (seconds, values) in curves.items():
            check_shape(f"panels[{title!r}][{name!r}]: values", np.asarray(values), len(seconds))
            points = np.array([seconds, values], np.float64)
            check_finite(f"panels[{title!r}][{name!r}]", points)
            colour, dashes = STYLES[solvers.index(name)]
            axes.plot(*points[:, (points > 0).all(0)], color=colour, linestyle=dashes, label=name)
        axes.set(xscale="log", yscale="log", ylabel=left, title=title)
    column[0].legend(frameon=False)
    column[-1].set_xlabel("seconds")
    return figure


def error_bars(errors: Mapping[str, Sequence[float]], *, what: str) -> Figure:
    """Return one bar for each method: the mean of its errors, and their standard deviation.

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
    figure, axes = one_frame(7.0, 1.0 + 0.4 * len(errors))
    bars = axes.barh(range(len(errors)), means, xerr=deviations, color=COLOURS[0], ecolor="0.3", capsize=3)
    axes.bar_label(bars, [f"{mean:.3f}" for mean in means], padding=6)
    name_rows(axes, list(errors))
    axes.set(xlabel=what, xlim=(0, 1.2 * float(np.max(np.add(means, deviations)))))
    return figure


def error_curves(lines: Mapping[str, Mapping[float, float]], *, x_label: str, y_label: str) -> Figure:
    """Return one line for each name, through its points x → y.

    Raises:
        ValueError: no line, or one without a point.
    """
    if not lines or not all(lines.values()):
        raise ValueError("lines: expected at least one, each with a point")
    figure, axes = one_frame(6.0, 3.5)
    for number, (name, points) in enumerate(lines.items()):
        places = sorted(points)
        values = [points[place] for place in places]
        axes.plot(places, values, marker="o", color=COLOURS[number % len(COLOURS)], label=name)
    axes.set(xlabel=x_label, ylabel=y_label)
    if all(float(place).is_integer() for points in lines.values() for place in points):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    figure.legend(frameon=False, loc="outside right upper")
    return figure
