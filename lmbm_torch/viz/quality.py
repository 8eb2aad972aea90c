"""Figures of reports: calibration of probabilities, and the effect of joint decoding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from lmbm_torch.checks import check_finite, check_shape
from lmbm_torch.shapes import Float, Int
from lmbm_torch.viz.comparisons import bar_chart
from lmbm_torch.viz.style import COLOURS, frames, name_rows, one_frame

BLUE, ORANGE = COLOURS[:2]
# With more labels, figures are too tall to be looked at.
MAX_BARS = 100


def label_chart(
    names: Sequence[str],
    true: Int[np.ndarray, " labels"],
    panels: Mapping[str, Float[np.ndarray, " labels"]],
    *,
    what: str = "labels",
) -> Figure:
    """A bar for each label's shares, such as F1, from 0 to 1; of many labels those that are true most often.

    Args:
        names: one per label.
        true: how often each is true.
        panels: measure → each label's value in [0, 1].
        what: the labels are, for the title, which says how many of how many are shown where not all are.

    Raises:
        ValueError: another number of counts or values than of names; values that are no shares.
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
    """The observed frequency of labels against their predicted probability, and the count of each bin.

    Points on the diagonal are calibrated; above it, labels are more frequent than predicted. Error bars are
    the standard error of the observed share.

    Args:
        panels: title → mean probability, share that is true, and count of each bin with at least one entry.

    Raises:
        ValueError: no panel, a panel without a bin, or values that are not probabilities.
    """
    if not panels:
        raise ValueError("panels: expected at least one, got none")
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
    """Each label's number of decisions that joint decoding mended, to the right, and broke, to the left.

    Labels without a change are left out; of many those with the most changes are shown, as the title says.

    Args:
        label_names: one per label.
        mended: decisions that are wrong by the label's own probability and right jointly.
        broken: decisions that are right by the label's own probability and wrong jointly.

    Raises:
        ValueError: another number of counts than of names, or no change at all.
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
