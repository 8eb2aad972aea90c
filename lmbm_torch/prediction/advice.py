"""Recommendations by the numbers of a report."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from lmbm_torch.prediction.findings import Calibration, Findings
from lmbm_torch.prediction.predictor import Predictor
from lmbm_torch.prediction.trained import TrainedModel

# An error of probabilities below this is no reason to train again.
LEAST_ERROR = 0.05
NUM_NAMES = 8
# Metrics whose smaller values are better.
LOSSES = ("hamming_loss",)


def advice(saved: Predictor, found: Findings, intervals: Mapping[str, tuple[float, float]]) -> list[str]:
    """Return recommendations as sentences, the most important sentence first.

    Args:
        saved: the predictor.
        found: the findings of a report.
        intervals: the 95 % intervals of the headline metrics.

    Returns:
        An empty list if nothing needs to be said.
    """
    return [
        *_no_better_than_nothing(found, intervals),
        *_labels_without_variety(found),
        *_never_given(saved, found),
        *_edge_of_search(saved),
        *_uncalibrated(saved, found),
        *_unproven(saved, found),
    ]


def _no_better_than_nothing(found: Findings, intervals: Mapping[str, tuple[float, float]]) -> Iterable[str]:
    without = found.baseline()
    better = (
        high < without[name] if name in LOSSES else low > without[name]
        for name, (low, high) in intervals.items()
    )
    if not any(better):
        yield (
            "No measure is clearly better than that of the answer that needs no features: look for other "
            "features, for more rows, or at whether the rows and their labels belong together."
        )


def _labels_without_variety(found: Findings) -> Iterable[str]:
    true, rows = found.by_label()["true"], len(found.truth)
    for words, dead in (("never", true == 0), ("always", true == rows)):
        if dead.any():
            yield (
                f"Labels that are {words} true in these rows tell nothing of the model here, and count in "
                f"means over labels: {_names(found, dead)}. Measure where they vary, or leave them out."
            )


def _never_given(saved: Predictor, found: Findings) -> Iterable[str]:
    by_label = found.by_label()
    missed = (by_label["predicted"] == 0) & (by_label["true"] > 0)
    if not missed.any():
        return
    remedies = ["more rows where they are true"]
    if not isinstance(saved.estimator, TrainedModel):
        settings = saved.estimator.trained.get_params(deep=False)
        if settings.get("class_weight", "") is None:
            remedies.append('class_weight="balanced"')
        if settings.get("decoder") == "hinge":
            remedies.append('decoder="f1"')
    *others, last = remedies
    ways = f"{', '.join(others)} or {last}" if others else last
    yield f"Labels true in some rows and given to none: {_names(found, missed)}. Try {ways}."


def _edge_of_search(saved: Predictor) -> Iterable[str]:
    trained = saved.estimator.trained
    if isinstance(trained, TrainedModel):
        return
    if trained.C_edge_ is not None:
        # A multiple of "scale" is a text.
        C = trained.C if isinstance(trained.C, str) else f"{trained.C:g}"
        further = "smaller" if trained.C_edge_ == "smallest" else "larger"
        yield (
            f"C = {C} is the {trained.C_edge_} value that was searched: search {further} ones, too "
            f"(Cs, from the shell estimator.Cs=[…])."
        )


def _uncalibrated(saved: Predictor, found: Findings) -> Iterable[str]:
    calibration = found.calibration()
    if calibration.error < max(LEAST_ERROR, 2 * _by_chance(calibration, len(found.label_names))):
        return
    trained = saved.estimator.trained
    if not isinstance(trained, TrainedModel):
        # Of what has no such setting none is known.
        if trained.get_params(deep=False).get("calibrate", True) is not False:
            return
        how = "calibrate=True (from the shell estimator.calibrate=true, or estimator.base.calibrate=true)"
    elif trained.calibration is None:
        how = "training=dual, whose training.calibrate=true is the default"
    else:
        return
    yield f"Probabilities are off by {calibration.error:.2f} on average and not calibrated: train with {how}."


def _by_chance(calibration: Calibration, num_labels: int) -> float:
    """Return the expected calibration error of correct probabilities, with one draw for each row."""
    variance = np.maximum(calibration.said * (1 - calibration.said), 1e-3)
    noise = np.sqrt(2 / np.pi * variance * num_labels / calibration.count)
    return float(noise @ calibration.count / calibration.count.sum())


def _unproven(saved: Predictor, found: Findings) -> Iterable[str]:
    unproven = int((~found.exact).sum())
    if not unproven:
        return
    try:
        saved.limited(None)
        how = "search longer, by a larger --node-limit or by none (node_limit=None)"
    except ValueError:
        how = "where a proof counts, decode by search, as --most-probable and --least-hinge do"
    yield f"{unproven} of {len(found.exact)} answers are not proven optimal: {how}."


def _names(found: Findings, which: Any) -> str:
    names = [found.label_names[place] for place in np.flatnonzero(which)]
    more = f" and {len(names) - NUM_NAMES} more" if len(names) > NUM_NAMES else ""
    return ", ".join(names[:NUM_NAMES]) + more
