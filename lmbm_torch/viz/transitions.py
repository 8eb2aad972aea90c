"""What a chain has learned of which label follows which, and how methods compare."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from lmbm_torch.checks import check_finite, check_shape
from lmbm_torch.shapes import Float


def transition_heatmap(transition: Float[np.ndarray, "states states"], label_names: Sequence[str]) -> Figure:
    """The weight of every transition, from row to column: red is favoured, blue is not.

    Args:
        transition: such as a chain estimator's ``transition_``.
        label_names: one per state.

    Raises:
        ValueError: shapes that do not fit, weights that are not finite.
    """
    check_shape("transition", transition, len(label_names), len(label_names))
    check_finite("transition", transition)
    strongest = max(float(np.abs(transition).max()), np.finfo(np.float64).tiny)
    side = min(3.0 + 0.25 * len(label_names), 12.0)
    figure = Figure(figsize=(side + 1.0, side), layout="constrained")
    axes = figure.add_subplot()
    image = axes.imshow(transition, cmap=matplotlib.colormaps["RdBu_r"], vmin=-strongest, vmax=strongest)
    figure.colorbar(image, ax=axes, label="weight", shrink=0.8)
    names = range(len(label_names)), label_names
    axes.set_xticks(*names)
    axes.set_yticks(*names)
    axes.set(xlabel="next label", ylabel="label", title="Which label follows which")
    return figure


def error_bars(errors: Mapping[str, Sequence[float]], *, what: str) -> Figure:
    """One bar a method: the mean of its errors, and their standard deviation.

    Args:
        errors: method → its error in each fold; a single one has no deviation.
        what: the axis' name.

    Raises:
        ValueError: no method, a method without errors, errors that are not finite.
    """
    if not errors or not all(len(each) for each in errors.values()):
        raise ValueError(f"errors: expected at least one method with errors, got {dict(errors)}")
    for method, each in errors.items():
        check_finite(f"errors[{method!r}]", np.asarray(each, float))
    names = list(errors)
    means, deviations = (
        [np.mean(each) for each in errors.values()],
        [np.std(each) for each in errors.values()],
    )
    figure = Figure(figsize=(7.0, 1.0 + 0.4 * len(names)), layout="constrained")
    axes = figure.add_subplot()
    bars = axes.barh(names, means, xerr=deviations, color="#0072b2", ecolor="0.3", capsize=3)
    axes.bar_label(bars, [f"{mean:.3f}" for mean in means], padding=6)
    axes.invert_yaxis()
    axes.set(xlabel=what, xlim=(0, 1.2 * float(np.max(np.add(means, deviations)))))
    return figure
