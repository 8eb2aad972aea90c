"""Trials, results of a method on a split of a data set, and summaries of trials as rows of a table.

Two methods are compared by paired tests over splits with overlapping training sets.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from scipy import stats
from sklearn.base import clone
from sklearn.model_selection import KFold, RandomizedSearchCV
from sklearn.pipeline import Pipeline

from lmbm_torch.checks import check_count, check_labels, check_positive, check_shape
from lmbm_torch.compare.methods import (
    METHODS,
    Ensemble,
    Tuned,
    is_installed,
    num_settings,
    scalings,
    takes,
    tuned,
    unscaled,
)
from lmbm_torch.compare.tables import Result, write_text
from lmbm_torch.data import MultilabelData
from lmbm_torch.data.splits import stratified_split
from lmbm_torch.estimators.common.spreading import spread
from lmbm_torch.extras import EXTRAS
from lmbm_torch.metrics import multilabel_metrics

MEASURES = {
    "exact_match": "exact match",
    "sample_f1": "sample F1",
    "hamming_loss": "Hamming loss",
    "macro_f1": "macro F1",
}
SECONDS = {"fit_seconds": "training (CPU s)", "decode_seconds": "decoding 1,000 (CPU s)"}
# Largest p-value of a significant difference.
SIGNIFICANT = 0.05
TRIALS = "trials"
"""The subfolder for the results of trials in the folder of a comparison."""


def standard_error(values: np.ndarray, test_per_train: float) -> float:
    """Return the standard error of the mean over splits: s √(1/k + n_test / n_train).

    The term n_test / n_train corrects for instances that splits share (Nadeau and Bengio, "Inference for the
    generalization error", 2003, section 3.3).

    Args:
        values: ``(splits,)``, at least two.
        test_per_train: n_test / n_train.

    Raises:
        ValueError: there are fewer than two values, or the ratio is not above 0.
    """
    check_positive("test_per_train", test_per_train)
    if len(values) < 2:
        raise ValueError(f"values: expected values of at least 2 splits, got {len(values)} values")
    return float(np.std(values, ddof=1) * np.sqrt(1 / len(values) + test_per_train))


def interval(values: np.ndarray, test_per_train: float, level: float = 0.95) -> tuple[float, float]:
    """Return the confidence interval of the mean over splits, by :func:`standard_error`."""
    reach = stats.t.ppf((1 + level) / 2, len(values) - 1) * standard_error(values, test_per_train)
    return float(np.mean(values) - reach), float(np.mean(values) + reach)


def corrected_t_test(first: np.ndarray, second: np.ndarray, test_per_train: float) -> float:
    """Return the two-sided p-value for equal means, by the corrected resampled t-test of Nadeau and Bengio.

    Args:
        first, second: ``(splits,)``, values of two methods on the same splits; if all are equal, p is 1.

    Raises:
        ValueError: see :func:`standard_error`; also if the numbers of splits differ.
    """
    check_shape("second", second, len(first))
    differences = np.subtract(first, second)
    error = standard_error(differences, test_per_train)
    if error == 0:
        return float(not differences.any())
    return float(2 * stats.t.sf(abs(differences.mean()) / error, len(differences) - 1))


def holm(p_values: np.ndarray) -> np.ndarray:
    """Adjust the p-values of several tests by Holm's step-down method (1979).

    Args:
        p_values: ``(tests,)``.
    """
    count = len(p_values)
    order = np.argsort(p_values)
    steps = np.asarray(p_values)[order] * np.arange(count, 0, -1)
    adjusted = np.empty(count)
    adjusted[order] = np.minimum(np.maximum.accumulate(steps), 1)
    return adjusted


@dataclass(frozen=True)
class Settings:
    """The settings of a comparison.

    Args:
        splits: number of splits; each split draws a test set, stratified by label set.
        test_fraction: the share of test instances.
        budget: number of settings to try for each method; for each split other settings are drawn.
        folds: number of folds of the cross-validation on the training set that chooses a setting.
        seed: seed of the first split, the draws and folds; the next splits take the next seeds.

    Raises:
        ValueError: there are fewer than two splits or folds, or ``budget`` is below 1.
    """

    splits: int
    test_fraction: float
    budget: int
    folds: int
    seed: int

    def __post_init__(self) -> None:
        check_count("budget", self.budget)
        for name in ("splits", "folds"):
            if getattr(self, name) < 2:
                raise ValueError(f"{name}: expected at least 2, got {getattr(self, name)}")

    def protocol(self) -> str:
        """Describe the comparison for readers of the table."""
        return (
            f"Mean ± standard deviation over {self.splits} splits, {self.test_fraction:.0%} of the instances "
            f"in the test part. {self.budget} settings of each method are tried by {self.folds}-fold "
            "cross-validation of the rest. * differs from the reference (corrected t-test, Holm, .05)."
        )


def completely_labelled(data: MultilabelData) -> MultilabelData:
    """Return the instances without missing labels, as one training set.

    Raises:
        ValueError: every instance has missing labels.
    """
    known = ~np.isnan(data.labels).any(1)
    if known.all():
        return data
    if not known.any():
        raise ValueError(f"data.labels: expected instances without missing labels, got none in {known.size}")
    rows = np.arange(int(known.sum()))
    features, labels = data.features[known], data.labels[known]
    none = rows[:0]
    return replace(data, features=features, labels=labels, train=rows, test=none, validation=none)


def tried(
    data: MultilabelData, methods: Sequence[str], settings: Settings, folder: Path, console: Console
) -> list[Result]:
    """Return the result of each method on each split; results stored in ``folder`` are not computed again.

    Workers of joblib's active backend compute the trials; ensembles come after the methods of the bases.

    Args:
        methods: names that :func:`check_methods` accepts.

    Raises:
        Exception: the error of the first failed trial; the results of earlier trials are stored.
    """
    every = [(name, split) for split in range(settings.splits) for name in methods]
    texts = {(name, split): f"{data.name} {name} split {split}".lower() for name, split in every}
    slugs = {trial: re.sub(r"[^a-z0-9]+", "_", text).strip("_") for trial, text in texts.items()}
    files = {trial: folder / TRIALS / f"{slug}.json" for trial, slug in slugs.items()}
    found: dict[tuple[str, int], Result] = {
        trial: json.loads(file.read_text(encoding="utf-8")) for trial, file in files.items() if file.exists()
    }
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        shown = bar.add_task(_counted(found, every))
        for kind in (Tuned, Ensemble):
            todo = [trial for trial in every if trial not in found and isinstance(METHODS[trial[0]], kind)]
            bases = [found.get((getattr(METHODS[name], "base", ""), split)) for name, split in todo]
            results = spread(_tried, (data, settings), zip(todo, bases, strict=True))
            for trial, result in zip(todo, results, strict=True):
                found[trial] = {"name": trial[0], "data": data.name, **result}
                write_text(files[trial], json.dumps(found[trial], indent=1))
                bar.update(shown, description=_counted(found, every))
                if not console.is_terminal:
                    line = f"{_counted(found, every)}: {trial[0]}, split {trial[1]}"
                    console.print(line, soft_wrap=True, highlight=False, markup=False)
    return [found[trial] for trial in every]


def check_methods(data: MultilabelData, methods: Sequence[str]) -> None:
    """Raise ValueError unless all methods can be compared.

    Raises:
        ValueError: a method is unknown, the library is not installed, or it cannot use the features; an
            ensemble comes before the base; or labels are missing.
    """
    check_labels("data.labels", data.labels)
    for place, name in enumerate(methods):
        if name not in METHODS:
            raise ValueError(f"methods: expected some of {list(METHODS)}, got {name!r}")
        method = METHODS[name]
        if not is_installed(name):
            extra = EXTRAS[tuned(name).library or ""]
            raise ValueError(
                f"methods: expected methods whose libraries are installed, got {name!r}; "
                f'pip install "lmbm-torch[{extra}]" installs it'
            )
        if not takes(name, data.features):
            raise ValueError(
                f"methods: expected methods that take sparse features, as the data are sparse, got {name!r}"
            )
        if isinstance(method, Ensemble) and method.base not in methods[:place]:
            raise ValueError(f"methods: expected {method.base!r} before {name!r}, got {list(methods)}")


def _tried(given: tuple[MultilabelData, Settings], trial: tuple[tuple[str, int], Result | None]) -> Result:
    """Return the result of a method on a split; an ensemble needs the result of the base on the split."""
    (data, settings), ((name, number), base) = given, trial
    method, seed = METHODS[name], settings.seed + number
    split = data.with_split(*stratified_split(data.labels, settings.test_fraction, seed))
    if isinstance(method, Ensemble):
        assert base is not None
        return try_ensemble(split, method, base)
    return try_tuned(split, method, settings, seed)


def _counted(found: Collection[Any], every: Collection[Any]) -> str:
    return f"{len(found)} of {len(every)} trials"


def try_tuned(data: MultilabelData, method: Tuned, settings: Settings, seed: int) -> Result:
    """Choose parameters by cross-validation, fit to the whole training set, and measure on the test set."""
    X, Y = part(data, data.train)
    offered = _offered(method, X)
    pipeline = Pipeline([("scaling", "passthrough"), ("model", clone(method.model))])
    space = {"scaling": [*offered.values()]} | {f"model__{key}": each for key, each in method.space.items()}
    search = RandomizedSearchCV(
        pipeline,
        space,
        n_iter=num_settings(space, settings.budget),
        scoring="accuracy",
        refit=False,
        cv=KFold(settings.folds, shuffle=True, random_state=seed),
        random_state=seed,
        error_score="raise",  # pyright: ignore[reportArgumentType]
    ).fit(X, Y)
    chosen = dict(search.best_params_)
    scaling = next(name for name, each in offered.items() if each is chosen["scaling"])
    parameters = {
        key.removeprefix("model__"): value.item() if isinstance(value, np.generic) else value
        for key, value in chosen.items()
        if key != "scaling"
    }
    result = measured(pipeline.set_params(**chosen), data)
    return {**result, "cross_validated": search.best_score_, "scaling": scaling, "_parameters": parameters}


def _offered(method: Tuned, X: Any) -> dict[str, Any]:
    """Return the scalings among which a method chooses, by name."""
    return scalings(X) if method.is_scaled else {"none": unscaled()}


def try_ensemble(data: MultilabelData, method: Ensemble, base: Result) -> Result:
    """Fit an ensemble to the training set with the parameters of the base, and measure on the test set."""
    of_base = tuned(method.base)
    model: Any = clone(of_base.model)
    member = model.set_params(**base["_parameters"])
    scaling = clone(_offered(of_base, data.features)[base["scaling"]])
    result = measured(Pipeline([("scaling", scaling), ("model", method.gather(member))]), data)
    return {**result, "scaling": base["scaling"], "_parameters": base["_parameters"]}


def measured(pipeline: Pipeline, data: MultilabelData) -> Result:
    """Fit a pipeline to the training set, and measure the answers and CPU times on the test set.

    For models with certificates, ``proven`` is the share of test instances whose answer is proven optimal.
    """
    X, Y = part(data, data.train)
    started = time.process_time()
    pipeline.fit(X, Y)
    fitted = time.process_time() - started
    tests, _ = part(data, data.test)
    pipeline.predict(tests[:1])
    started = time.process_time()
    pipeline.predict(tests)
    decoded = time.process_time() - started
    model = pipeline["model"]
    decode = getattr(model, "decode", None)
    status = None if decode is None else decode(pipeline["scaling"].transform(tests)).status
    return {
        **measure(pipeline, data, list(MEASURES)),
        "fit_seconds": fitted,
        "decode_seconds": 1000 * decoded / len(data.test),
        "proven": None if status is None else float(status.exact.double().mean()),
    }


def summary(trials: Sequence[Result], reference: str, settings: Settings) -> list[Result]:
    """Return a row for each method: mean, deviation and interval of each measure, and the settings.

    ``p_<measure>`` is the p-value of the corrected t-test against the reference, adjusted for all methods by
    Holm's method; ``_<measure>`` holds mean and deviation as text.

    Raises:
        ValueError: the reference is not among the methods.
    """
    methods = list(dict.fromkeys(str(trial["name"]) for trial in trials))
    if reference not in methods:
        raise ValueError(f"reference: expected one of {methods}, got {reference!r}")
    test_per_train = settings.test_fraction / (1 - settings.test_fraction)
    by_method = {name: [trial for trial in trials if trial["name"] == name] for name in methods}
    rows: dict[str, Result] = {name: {"data": trials[0]["data"], "method": name} for name in methods}
    for key in MEASURES:
        values = {name: np.array([trial[key] for trial in by_method[name]]) for name in methods}
        others = [name for name in methods if name != reference]
        tests = [corrected_t_test(values[name], values[reference], test_per_train) for name in others]
        adjusted = dict(zip(others, holm(np.array(tests)).tolist(), strict=True))
        for name in methods:
            rows[name] |= _summary_of(key, values[name], adjusted.get(name), test_per_train)
    for name in methods:
        for key in (*SECONDS, "proven"):
            found = [trial[key] for trial in by_method[name]]
            rows[name][key] = None if None in found else float(np.mean(found))
        rows[name] |= asdict(settings)
    return list(rows.values())


def columns(reference: str) -> dict[str, str]:
    """Return the headings of the table's columns by key."""
    return {
        **{f"_{key}": heading for key, heading in MEASURES.items()},
        "p_exact_match": f"p of exact match, against {reference}",
        **SECONDS,
        "proven": "proven optimal",
    }


def intervals(rows: Sequence[Result], key: str) -> dict[str, tuple[float, float, float]]:
    """Return for each method the mean of a measure, and the two ends of the confidence interval."""
    return {str(row["method"]): (row[key], row[f"{key}_low"], row[f"{key}_high"]) for row in rows}


def significant(rows: Sequence[Result], key: str) -> set[str]:
    """Return the methods that differ significantly from the reference in a measure."""
    p_values: Mapping[str, float | None] = {str(row["method"]): row[f"p_{key}"] for row in rows}
    return {name for name, p in p_values.items() if p is not None and p < SIGNIFICANT}


def _summary_of(key: str, values: np.ndarray, p_value: float | None, test_per_train: float) -> Result:
    low, high = interval(values, test_per_train)
    mean, deviation = float(values.mean()), float(values.std(ddof=1))
    star = "*" if p_value is not None and p_value < SIGNIFICANT else ""
    return {
        key: mean,
        f"{key}_deviation": deviation,
        f"{key}_low": low,
        f"{key}_high": high,
        f"p_{key}": p_value,
        f"_{key}": f"{mean:.3f} ± {deviation:.3f}{star}",
    }


def part(data: MultilabelData, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return features in float64 and labels as integers."""
    return data.features[rows].astype(np.float64), data.labels[rows].astype(int)


def scores(predicted: np.ndarray, labels: np.ndarray, names: Sequence[str]) -> dict[str, float]:
    """Return the named metrics of predicted labels."""
    metrics = multilabel_metrics(labels.shape[1])
    metrics.update(torch.from_numpy(np.asarray(predicted, int)), torch.from_numpy(labels))
    values = metrics.compute()
    return {name: float(values[name]) for name in names}


def measure(model, data: MultilabelData, names: Sequence[str]) -> dict[str, float]:
    """Return the named metrics of a fitted model on the test set."""
    X, Y = part(data, data.test)
    return scores(model.predict(X), Y, names)
