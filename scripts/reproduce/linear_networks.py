"""Linear multi-label classifiers on Scene and Yeast: what exact joint decoding gains over the peers.

Every method gets the same choices, C and the scaling of the features, and makes them by five-fold
cross-validated exact match on the training part; the test part is used once. The ensembles take over the
choices of their base.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from sklearn.base import BaseEstimator
from sklearn.model_selection import GridSearchCV, KFold
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import MinMaxScaler, Normalizer, StandardScaler

from lmbm_torch.compare.trials import measure, part
from lmbm_torch.data import MultilabelData, load
from lmbm_torch.estimators import LMSBNClassifier, LMSBNEnsembleClassifier
from lmbm_torch.estimators.common.baselines import LabelPowersetSVM, classifier_chain, independent_svm
from reproduce.cells import Cell

METRICS = ("exact_match", "sample_f1", "hamming_loss", "macro_f1", "micro_f1")
COLUMNS = {
    "exact_match": "exact match",
    "sample_f1": "sample F1",
    "hamming_loss": "Hamming loss",
    "macro_f1": "macro F1",
    "micro_f1": "micro F1",
    "C": "C",
    "scaling": "scaling",
    "fit_seconds": "fit (s)",
    "proven": "proven optimal",
}
PENALTIES = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
SCALINGS = (Normalizer(), MinMaxScaler(clip=True), StandardScaler())
"""Rows of unit norm, features in [0, 1], features of unit variance."""
MEMBERS = 10


def network(**settings) -> LMSBNClassifier:
    """Return an LMSBN with one seed."""
    return LMSBNClassifier(random_state=0, **settings)


METHODS: dict[str, tuple[BaseEstimator, str]] = {
    "independent linear SVMs": (independent_svm(), "estimator__C"),
    "classifier chain (linear SVMs, greedy)": (classifier_chain(), "estimator__C"),
    "label powerset (pairwise linear SVMs)": (LabelPowersetSVM(), "C"),
    "LMSBN, index order": (network(ordering="index"), "C"),
    "LMSBN, F-score order": (network(), "C"),
    "LMSBN, F-score order, triples": (network(degree=3), "C"),
}
ENSEMBLES = {
    f"{MEMBERS} LMSBNs, joint decoding": "LMSBN, F-score order",
    f"{MEMBERS} LMSBNs with triples, joint decoding": "LMSBN, F-score order, triples",
}


def cells(sets: Sequence[str], folder: str) -> Iterator[Cell]:
    """Yield one cell for each data set, found in ``folder``, and method."""
    for name in sets:
        data = load(name, folder)
        for method in METHODS:
            yield Cell(name, method, partial(cross_validate, data, *METHODS[method]))
        for method, base in ENSEMBLES.items():
            yield Cell(name, method, partial(ensemble, data), after=base)


def proven(pipeline, data: MultilabelData) -> float:
    """Return the share of test instances whose labelling is certified to be the best."""
    X, _ = part(data, data.test)
    decoding = pipeline["model"].decode(pipeline["scaling"].transform(X))
    return float(decoding.status.exact.double().mean())


def cross_validate(data: MultilabelData, model: BaseEstimator, parameter: str) -> dict[str, Any]:
    """Choose C and the scaling on the training part, refit on all of it, and measure on the test part."""
    X, Y = part(data, data.train)
    grid = {f"model__{parameter}": list(PENALTIES), "scaling": list(SCALINGS)}
    pipeline = Pipeline([("scaling", SCALINGS[0]), ("model", model)])
    folds = KFold(5, shuffle=True, random_state=0)
    search = GridSearchCV(
        pipeline,
        grid,
        cv=folds,
        scoring="accuracy",
        error_score="raise",  # pyright: ignore[reportArgumentType]
    ).fit(X, Y)
    best, pipeline = search.best_params_, search.best_estimator_
    return {
        **measure(pipeline, data, METRICS),
        "C": best[f"model__{parameter}"],
        "scaling": type(best["scaling"]).__name__,
        "cross_validated": search.best_score_,
        "fit_seconds": search.refit_time_,
        "proven": proven(pipeline, data) if isinstance(model, LMSBNClassifier) else None,
    }


def ensemble(data: MultilabelData, base: dict[str, Any]) -> dict[str, Any]:
    """Return random orderings of the base's network, at the C and scaling that it chose."""
    X, Y = part(data, data.train)
    scaling = next(each for each in SCALINGS if type(each).__name__ == base["scaling"])
    member = METHODS[str(base["method"])][0]
    model = LMSBNEnsembleClassifier(member.set_params(C=base["C"]), num_members=MEMBERS, random_state=0)
    started = time.perf_counter()
    pipeline = Pipeline([("scaling", scaling), ("model", model)]).fit(X, Y)
    seconds = time.perf_counter() - started
    return {
        **measure(pipeline, data, METRICS),
        "C": base["C"],
        "scaling": base["scaling"],
        "fit_seconds": seconds,
        "proven": proven(pipeline, data),
    }
