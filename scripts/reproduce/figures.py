"""Convergence of solvers over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from lmbm_torch.checks import check_finite, check_shape
from lmbm_torch.viz.style import COLOURS, frames

Curve = tuple[Sequence[float], Sequence[float]]
"""Seconds, and the distance to the optimum at each."""

# Each solver has its own dashes as well as its own colour.
STYLES = tuple(zip(COLOURS, ("-", "--", "-.", ":"), strict=False))


def learning_curves(panels: Mapping[str, Mapping[str, Curve]], *, left: str = "above the optimum") -> Figure:
    """The distance to the optimum against time, both on logarithmic axes; one panel below the other.

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
