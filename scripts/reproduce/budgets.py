"""Settings and a threshold chosen for several metrics by one search within CPU seconds."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, cast

import numpy as np
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import KFold, ParameterSampler
from sklearn.pipeline import Pipeline

from lmbm_torch.compare.methods import METHODS, Ensemble, Tuned, num_settings, scalings, tuned, unscaled
from lmbm_torch.compare.tables import Result
from lmbm_torch.compare.trials import part, scores
from lmbm_torch.data import MultilabelData
from lmbm_torch.estimators.common.measures import measure

FOLDS = 3
# Beside the method's own settings.
MAX_DRAWN = 31
# One for the probabilities of all labels; of equally good ones the first.
THRESHOLDS = (0.5, 0.4, 0.3, 0.2, 0.1, 0.6)

LOSS = "neg_log_loss"
Answers = dict[float | str | None, np.ndarray]
"""Threshold → labels (instances, labels), and ``LOSS`` → probabilities; None for labels without."""


@dataclass(frozen=True)
class Setting:
    """A setting that a search tries.

    Args:
        scaling: the name of one of the features; None for those as they are.
        parameters: of the method's model.
    """

    scaling: str | None
    parameters: dict[str, Any]


@dataclass(frozen=True)
class Choice:
    """The best that a search has found for a metric, and its cross-validated value."""

    setting: Setting
    threshold: float | str | None
    value: float


def try_within(
    data: MultilabelData,
    name: str,
    metrics: Sequence[str],
    seconds: float,
    seed: int,
    base: Result | None = None,
) -> Result:
    """Return each metric on the test part, of what cross-validation on the training part has chosen for it.

    The method's own settings come first, then drawn ones until the seconds are over; an ensemble tries those
    that its base has chosen.

    Args:
        base: the result of an ensemble's base.
    """
    method = METHODS[name]
    X, Y = part(data, data.train)
    tests, truth = part(data, data.test)
    settings = _drawn(method, X, seed) if isinstance(method, Tuned) else _chosen(cast(Result, base))
    started = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        choices, tried = search(method, settings, X, Y, metrics, seconds, seed)
        searched = time.process_time() - started
        answers: dict[str, Answers] = {}
        result: Result = {}
        for metric, choice in choices.items():
            key = repr(choice.setting)
            if key not in answers:
                answers[key] = answers_of(pipeline(method, choice.setting, X).fit(X, Y), tests)
            result |= measured(choice.threshold, answers[key][choice.threshold], truth, [metric])
    spent = time.process_time() - started
    found = {metric: asdict(choice) for metric, choice in choices.items()}
    return {**result, "search_seconds": searched, "seconds": spent, "tried": tried, "_chosen": found}


def search(
    method: Tuned | Ensemble,
    settings: Iterator[Setting],
    X: Any,
    Y: np.ndarray,
    metrics: Sequence[str],
    seconds: float,
    seed: int,
) -> tuple[dict[str, Choice], int]:
    """Return the choice of each metric, and the number of settings tried in the given time."""
    folds = list(KFold(FOLDS, shuffle=True, random_state=seed).split(Y))
    truth = np.concatenate([Y[held] for _, held in folds])
    best: dict[str, Choice] = {}
    started, tried = time.process_time(), 0
    for setting in settings:
        if tried and time.process_time() - started > seconds:
            break
        parts = [
            answers_of(pipeline(method, setting, X).fit(X[rows], Y[rows]), X[held]) for rows, held in folds
        ]
        tried += 1
        for threshold in parts[0]:
            values = measured(threshold, np.concatenate([each[threshold] for each in parts]), truth, metrics)
            for metric, value in values.items():
                if metric not in best or value > best[metric].value:
                    best[metric] = Choice(setting, threshold, value)
    return best, tried


def pipeline(method: Tuned | Ensemble, setting: Setting, X: Any) -> Pipeline:
    """Return the method at a setting, unfitted; features are dense or sparse as ``X`` is."""
    model: Any = clone((method if isinstance(method, Tuned) else tuned(method.base)).model)
    model.set_params(**setting.parameters)
    scaling = unscaled() if setting.scaling is None else scalings(X)[setting.scaling]
    gathered = model if isinstance(method, Tuned) else method.gather(model)
    return Pipeline([("scaling", clone(scaling)), ("model", gathered)])


def answers_of(model: Pipeline, X: Any) -> Answers:
    """Return labels at every threshold, or the model's own."""
    if not hasattr(model, "predict_proba"):
        return {None: np.asarray(model.predict(X)).astype(int)}
    found: Any = model.predict_proba(X)
    if isinstance(found, list):
        # scikit-learn's form for several outputs: (instances, classes) of each.
        classes = model.classes_ if isinstance(model.classes_, list) else [np.arange(2)] * len(found)
        columns = [_presence(*each) for each in zip(found, classes, strict=True)]
        found = np.stack(columns, axis=1)
    return {LOSS: found} | {threshold: (found > threshold).astype(int) for threshold in THRESHOLDS}


def measured(
    threshold: float | str | None, answer: np.ndarray, truth: np.ndarray, metrics: Sequence[str]
) -> dict[str, float]:
    """Return the metrics that are of labels, or of probabilities where the threshold is ``LOSS``."""
    if threshold == LOSS:
        return {LOSS: measure("log_loss", answer, truth)} if LOSS in metrics else {}
    return scores(answer, truth, [metric for metric in metrics if metric != LOSS])


def _presence(probabilities: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """Return the column of the class 1, or what stands for it where training had one class."""
    if probabilities.shape[1] == 2:
        return probabilities[:, 1]
    return np.full(len(probabilities), float(classes[0]))


def _drawn(method: Tuned, X: Any, seed: int) -> Iterator[Setting]:
    offered: list[str | None] = [*scalings(X)] if method.is_scaled else [None]
    yield Setting("unit variance" if "unit variance" in offered else offered[0], {})
    space = {"scaling": offered, **method.space}
    for drawn in ParameterSampler(space, num_settings(space, MAX_DRAWN), random_state=seed):
        plain = {
            key: value.item() if isinstance(value, np.generic) else value for key, value in drawn.items()
        }
        yield Setting(plain.pop("scaling"), plain)


def _chosen(base: Result) -> Iterator[Setting]:
    seen: list[Setting] = []
    for choice in base["_chosen"].values():
        setting = Setting(**choice["setting"])
        if setting not in seen:
            seen.append(setting)
            yield setting
