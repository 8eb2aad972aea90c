"""Figure 4 and Figure 3 of lmbm_and_lmsbn_2010: networks with and without kernels beside their peers.

The comparison (Scene, which is the paper's, and Yeast): every method chooses its settings by five-fold
cross-validated exact match on the training part; the test part is used once. The orders of "lf" and "kf" are
those of the linear binary classifiers' F-scores, found anew in each fit, that of "lo" the columns'. What
tunes thresholds takes over the choices of its base and tunes them for one measure each. The paper prints no
numbers.

Decoding (rcv1_subset1): for more and more labels, how long the exact search takes, what share of documents is
solved within S right branches, and what Theorem 9 promises of it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, KFold
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import MinMaxScaler, Normalizer

from lmbm_torch.compare.trials import measure, part
from lmbm_torch.data import MultilabelData, load
from lmbm_torch.estimators import (
    LMSBNClassifier,
    LMSBNEnsembleClassifier,
    StructuralSVMClassifier,
    ThresholdTunedClassifier,
)
from lmbm_torch.estimators.networks import orderings
from lmbm_torch.files import write_figure
from lmbm_torch.viz.quality import bar_chart
from reproduce.cells import Cell
from reproduce.decoding_times import decoding_cells, draw_decoding
from reproduce.linear_networks import proven

COLUMNS = {
    "exact_match": "E",
    "sample_f1": "Fsam",
    "hamming_loss": "H",
    "macro_f1": "Fmac",
    "micro_f1": "Fmic",
    "C": "C",
    "gamma": "γ",
    "parent_scale": "c",
    "scaling": "scaling",
    "proven": "proven optimal",
    "labels": "labels",
    "instances": "trained on",
    "median_ms": "median (ms)",
    "exact_ms": "without S (ms)",
    "relaxed_ms": "LP (ms)",
    "within": "solved within S",
    "promised": "Theorem 9",
}
CHART = ("exact_match", "sample_f1", "hamming_loss", "macro_f1", "micro_f1")
PENALTIES = (0.3, 1.0, 3.0, 10.0)
WIDTHS = (0.5, 1.0, 2.0)
"""γ times the number of features times their variance."""
SCALINGS = (Normalizer(), MinMaxScaler(clip=True))
"""Rows of unit norm, features in [0, 1]."""
MEMBERS = 8
# Beyond this gap nothing changes that cross-validation could tell.
TOL = 1e-2


@dataclass(frozen=True)
class Method:
    """A model and the settings that it chooses among."""

    model: LMSBNClassifier | StructuralSVMClassifier
    penalties: tuple[float, ...]
    widths: tuple[float, ...] = ()
    parent_scales: tuple[float, ...] = ()

    def grid(self, scaled: np.ndarray) -> dict[str, Sequence[float]]:
        """Return for features that are scaled already."""
        variance = scaled.shape[1] * float(scaled.var())
        grid = {
            "model__C": self.penalties,
            "model__gamma": [width / variance for width in self.widths],
            "model__parent_scale": self.parent_scales,
        }
        return {name: values for name, values in grid.items() if len(values)}


class LinearlyOrdered(LMSBNClassifier):
    """Ordered, unless told otherwise, by F-scores of linear classifiers, whatever the kernel."""

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> LinearlyOrdered:
        """Order the labels by these instances alone, then learn."""
        asked = self.ordering
        if asked == "auto":
            self.ordering = orderings.f_score(X, y.astype(np.float64), seed=0)
        try:
            return super().fit(X, y, sample_weight)
        finally:
            self.ordering = asked


def network(**settings) -> LMSBNClassifier:
    """Return an LMSBN with the table's gap and one seed."""
    return LinearlyOrdered(**{"tol": TOL, "random_state": 0} | settings)


def structural(graph: str) -> Method:
    """Return a structural SVM on a graph, and its C to choose from."""
    # Smaller than for the others: its losses add up over the labels, and large C takes long.
    return Method(StructuralSVMClassifier(graph=graph, tol=TOL, random_state=0), (0.3, 1.0, 3.0))


BINARY_LINEAR = "BCl: independent linear SVMs"
NETWORK_KERNEL = "LMSBN kf: RBF, F-score order"
METHODS = {
    BINARY_LINEAR: Method(network(degree=1), PENALTIES),
    "BCk: independent RBF SVMs": Method(network(kernel="rbf", degree=1), PENALTIES[1:3], WIDTHS),
    "SSVM hmm: structural SVM, chain": structural("chain"),
    "SSVM full: structural SVM, all pairs": structural("full"),
    "LMSBN lo: linear, index order": Method(network(ordering="index"), PENALTIES),
    "LMSBN lf: linear, F-score order": Method(network(), PENALTIES),
    NETWORK_KERNEL: Method(network(kernel="rbf"), PENALTIES[1:3], WIDTHS, (0.25, 1.0)),
}
TUNED = {
    "exact_match": "E",
    "sample_f1": "Fsam",
    "macro_f1": "Fmac",
    "micro_f1": "Fmic",
}


def cells(sets: Sequence[str], folder: str) -> Iterator[Cell]:
    """Yield one cell for each data set in ``folder`` and method; decoding times where labels are many."""
    for name in sets:
        data = load(name, folder)
        if data.num_labels > 20:
            yield from decoding_cells(data)
            continue
        for method in METHODS:
            yield Cell(name, method, partial(cross_validate, data, method))
        method = f"{MEMBERS} LMSBN k: random orders, joint decoding"
        yield Cell(name, method, partial(ensemble, data), after=NETWORK_KERNEL)
        for measured, letter in TUNED.items():
            method = f"TSBC for {letter}: BCl with thresholds tuned"
            yield Cell(name, method, partial(tuned, data, measured), after=BINARY_LINEAR)
        for measured, letter in TUNED.items():
            method = f"LMSBN kf for {letter}: with thresholds tuned"
            yield Cell(name, method, partial(tuned, data, measured), after=NETWORK_KERNEL)


def draw(results: list[dict[str, Any]], folder: Path) -> None:
    """Plot a bar chart of five measures for each data set, and the times and shares of decoding."""
    draw_decoding(results, folder)
    for data in dict.fromkeys(result["data"] for result in results if "exact_match" in result):
        shown = {
            result["method"].split(":")[0]: result
            for result in results
            if result["data"] == data and "LMSBN kf for" not in result["method"]
        }
        values = {COLUMNS[key]: {name: float(result[key]) for name, result in shown.items()} for key in CHART}
        write_figure(folder / f"{data}.png", bar_chart(values))


def copy(model) -> Any:
    """Return an unfitted model with the same settings."""
    return clone(model)


def cross_validate(data: MultilabelData, name: str) -> dict[str, Any]:
    """Choose a method's settings and the scaling, refit on the training part, measure on the test part."""
    X, Y = part(data, data.train)
    method, searches = METHODS[name], []
    for scaling in SCALINGS:
        pipeline = Pipeline([("scaling", copy(scaling)), ("model", copy(method.model))])
        folds = KFold(5, shuffle=True, random_state=0)
        settings: Any = {"cv": folds, "scoring": "accuracy", "error_score": "raise"}
        grid = method.grid(copy(scaling).fit_transform(X))
        searches.append(GridSearchCV(pipeline, grid, **settings).fit(X, Y))
    best = max(searches, key=lambda search: search.best_score_)
    pipeline, chosen = best.best_estimator_, best.best_estimator_["model"].get_params()
    ordering = chosen.get("ordering")
    if ordering == "auto":
        ordering = pipeline["model"].ordering_.tolist()
    kept = ("C", "gamma", "parent_scale") if "model__gamma" in best.param_grid else ("C",)
    return {
        **measure(pipeline, data, CHART),
        **{key: chosen[key] for key in kept},
        "ordering": ordering,
        "scaling": type(pipeline["scaling"]).__name__,
        "cross_validated": best.best_score_,
        "fit_seconds": best.refit_time_,
        "proven": proven(pipeline, data),
    }


def as_chosen(result: dict[str, Any]) -> tuple[Any, Any]:
    """Return the scaling and the network of a cell, unfitted."""
    scaling = next(each for each in SCALINGS if type(each).__name__ == result["scaling"])
    network = copy(METHODS[str(result["method"])].model)
    names = [name for name in ("C", "gamma", "parent_scale") if name in result]
    return copy(scaling), network.set_params(**{name: result[name] for name in names})


def fitted_with(model, scaling, data: MultilabelData, base: dict[str, Any]) -> dict[str, Any]:
    """Fit a model at the choices of its base."""
    X, Y = part(data, data.train)
    started = time.perf_counter()
    pipeline = Pipeline([("scaling", scaling), ("model", model)]).fit(X, Y)
    seconds = time.perf_counter() - started
    kept = {name: base[name] for name in ("C", "gamma", "parent_scale", "scaling") if name in base}
    return {
        **measure(pipeline, data, CHART),
        **kept,
        "fit_seconds": seconds,
        "proven": proven(pipeline, data),
    }


def tuned(data: MultilabelData, measured: str, base: dict[str, Any]) -> dict[str, Any]:
    """Return the base's network with thresholds tuned for one measure."""
    scaling, network = as_chosen(base)
    folds: Any = KFold(5, shuffle=True, random_state=0)
    model = ThresholdTunedClassifier(network, measure=measured, cv=folds, num_steps=10)
    return fitted_with(model, scaling, data, base)


def ensemble(data: MultilabelData, base: dict[str, Any]) -> dict[str, Any]:
    """Return random orderings of the base's network."""
    scaling, network = as_chosen(base)
    model = LMSBNEnsembleClassifier(network, num_members=MEMBERS, orders="random", random_state=0)
    return fitted_with(model, scaling, data, base)
