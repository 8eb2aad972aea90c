"""Figures of reports: scores of labels, calibration of probabilities, joint decoding, and search nodes.

Also comparisons of methods, as bars or intervals.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from lmbm_torch.checks import check_finite, check_shape
from lmbm_torch.shapes import Float, Int
from lmbm_torch.viz.style import COLOURS, frames, name_rows, one_frame

Interval = tuple[float, float, float]
"""A mean and both ends of the interval."""


BLUE, ORANGE = COLOURS[:2]
# Largest number of labels in a figure: with more, figures are too tall for a page.
MAX_BARS = 100
# Number of bins of the histogram of search nodes for each doubling.
BINS_PER_OCTAVE = 2


def bar_chart(
    panels: Mapping[str, Mapping[str, float]], *, shares: Collection[str] = (), title: str = ""
) -> Figure:
    """Draw a panel for each measure, side by side, with a bar and its value for each method.

    Axes start at zero, since readers compare the lengths of bars.

    Args:
        panels: measure → method → value; if a panel lacks a method, there is a gap.
        shares: the measures whose axes always go from 0 to 1, for example F1.
        title: the title above all panels.

    Raises:
        ValueError: there is no panel or method; a value is not finite; a measure of ``shares`` has no panel,
            or values outside [0, 1].

    Examples:
        >>> from lmbm_torch.viz.quality import bar_chart
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
            # Leave room beyond 1 for the numbers, without ticks.
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
        >>> from lmbm_torch.viz.quality import interval_plot
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


def label_chart(
    names: Sequence[str],
    true: Int[np.ndarray, " labels"],
    panels: Mapping[str, Float[np.ndarray, " labels"]],
    *,
    what: str = "labels",
) -> Figure:
    """Draw a bar for each label's value in [0, 1], for example F1; of many labels only the most frequent.

    Args:
        names: one name per label.
        true: the number of positive rows of each label.
        panels: measure → each label's value in [0, 1].
        what: the word for labels in the title. The title gives the numbers of labels and of shown labels.

    Raises:
        ValueError: counts or values are not as many as names; a value is outside [0, 1].

    Examples:
        >>> import numpy as np
        >>> from lmbm_torch.viz.quality import label_chart
        >>> figure = label_chart(["sea", "beach"], np.array([9, 4]), {"F1": np.array([0.9, 0.5])})
        >>> len(figure.axes)
        1
    """
    check_shape("true", true, len(names))
    for title, values in panels.items():
        check_shape(f"panels[{title!r}]", values, len(names))
    shown = np.argsort(-true, kind="stable")[:MAX_BARS]
    is_cut = len(shown) < len(names)
    bars = {title: {names[int(k)]: float(each[k]) for k in shown} for title, each in panels.items()}
    title = f"the {len(shown)} most frequent of {len(names)} {what}" if is_cut else ""
    return bar_chart(bars, shares=tuple(panels), title=title)


def reliability_diagram(
    panels: Mapping[
        str, tuple[Float[np.ndarray, " bins"], Float[np.ndarray, " bins"], Int[np.ndarray, " bins"]]
    ],
) -> Figure:
    """Draw the observed frequency of labels against the predicted probability, and the count of each bin.

    Points on the diagonal are calibrated; above the diagonal, labels are more frequent than predicted. Error
    bars are the standard error of the observed share.

    Args:
        panels: title → for the bins that are not empty: mean probability, share of positives, count.

    Raises:
        ValueError: there is no panel, a panel has no bin, or a value is no probability.

    Examples:
        >>> import numpy as np
        >>> from lmbm_torch.viz.quality import reliability_diagram
        >>> bins = np.array([0.2, 0.8]), np.array([0.25, 0.75]), np.array([40, 60])
        >>> len(reliability_diagram({"labels": bins}).axes)
        2
    """
    if not panels:
        raise ValueError("panels: expected at least one panel, got none")
    size = (4.2 * len(panels), 4.6)
    figure, grid = frames(*size, rows=2, columns=len(panels), sharex=True, height_ratios=(3, 1))
    for (above, below), (title, (said, true, count)) in zip(grid.T, panels.items(), strict=True):
        check_shape(f"panels[{title!r}]", said, None)
        for values in (said, true):
            check_finite(f"panels[{title!r}]", values)
            if values.min() < 0 or values.max() > 1:
                raise ValueError(
                    f"panels[{title!r}]: expected probabilities, got {values.min()} to {values.max()}"
                )
        above.plot([0, 1], [0, 1], color="0.6", linestyle="--", linewidth=1)
        error = np.sqrt(true * (1 - true) / count)
        above.errorbar(said, true, error, color=BLUE, marker="o", markersize=4, capsize=2)
        above.set(title=title, ylabel="share that is true", xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
        below.bar(said, count, width=0.05, color=BLUE)
        below.set(xlabel="probability given", ylabel="count", yscale="log", ylim=(0.5, None))
    return figure


def change_chart(
    label_names: Sequence[str], mended: Int[np.ndarray, " labels"], broken: Int[np.ndarray, " labels"]
) -> Figure:
    """Draw for each label how many decisions joint decoding corrected (right) and made wrong (left).

    Labels without a change are left out; of many labels only those with the most changes are shown, and the
    title says so.

    Args:
        label_names: one name per label.
        mended: for each label, the number of decisions that are right only by joint decoding.
        broken: for each label, the number of decisions that are right only without joint decoding.

    Raises:
        ValueError: counts are not as many as names, or there is no change at all.

    Examples:
        >>> import numpy as np
        >>> from lmbm_torch.viz.quality import change_chart
        >>> figure = change_chart(["sea", "beach"], mended=np.array([3, 0]), broken=np.array([1, 0]))
        >>> [text.get_text() for text in figure.axes[0].get_yticklabels()]
        ['sea']
    """
    check_shape("mended", mended, len(label_names))
    check_shape("broken", broken, len(label_names))
    changed = mended + broken
    all_changed = [label for label in np.argsort(-changed, kind="stable") if changed[label]]
    shown = all_changed[:MAX_BARS]
    if not shown:
        raise ValueError("mended, broken: expected at least one change, got none")
    figure, axes = one_frame(7.0, 1.2 + 0.28 * len(shown))
    for sign, counts, name, colour in ((1, mended, "mended", BLUE), (-1, broken, "broken", ORANGE)):
        bars = axes.barh(range(len(shown)), sign * counts[shown], color=colour, label=name)
        axes.bar_label(bars, [str(count) if count else "" for count in counts[shown]], padding=3)
    axes.axvline(0, color="0.3", linewidth=1)
    widest = 1.15 * max(int(mended[shown].max()), int(broken[shown].max()))
    axes.set_xlim(-widest, widest)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.xaxis.set_major_formatter(lambda value, _: f"{abs(value):g}")
    axes.set_xlabel("decisions that joint decoding changed")
    if len(shown) < len(all_changed):
        axes.set_title(f"the {len(shown)} most changed of {len(all_changed)} labels", fontsize="medium")
    name_rows(axes, [label_names[int(label)] for label in shown])
    axes.legend(frameon=False, loc="best")
    return figure


def node_histogram(
    nodes: Int[Tensor, " instances"] | Int[np.ndarray, " instances"] | Sequence[int],
) -> Figure:
    """Draw a histogram of search nodes per instance on a logarithmic axis.

    Args:
        nodes: the number of visited nodes of each instance; the title counts the instances with 0, which
            rules decided without a search.

    Raises:
        ValueError: there is no instance, or a count is below zero.

    Examples:
        >>> from lmbm_torch.viz.quality import node_histogram
        >>> node_histogram([0, 1, 6, 40]).axes[0].get_title()
        '4 instances, 1 without a search, at most 40'
    """
    counts = torch.as_tensor(nodes, device="cpu").double().numpy()
    check_shape("nodes", counts, None)
    if counts.min() < 0:
        raise ValueError(f"nodes: expected at least 0 for every instance, got {counts.min():g}")
    idle = int((counts == 0).sum())
    octaves = np.log2(max(counts.max(), 1)) + 1 / BINS_PER_OCTAVE
    edges = 2.0 ** (np.arange(np.ceil(octaves * BINS_PER_OCTAVE) + 1) / BINS_PER_OCTAVE)

    figure, axes = one_frame(6.0, 3.5)
    axes.hist(counts[counts > 0], bins=edges.tolist(), color=COLOURS[0], edgecolor="white")
    axes.axvline(float(np.median(counts)), color=COLOURS[1], label=f"median {np.median(counts):g}")
    axes.set_xscale("log", base=2)
    without = f", {idle} without a search" if idle else ""
    title = f"{len(counts)} instances{without}, at most {counts.max():g}"
    axes.set(xlabel="nodes visited", ylabel="instances", title=title)
    axes.legend(frameon=False)
    return figure
