"""Conditional RBMs as multi-label classifiers on Scene and Yeast, beside a sigmoid belief network.

Every method chooses C and the scaling of its features by five-fold cross-validated exact match on the
training part, the machines their number of hidden units too where several are configured; the test part is
used once. The training of machines is not convex: they are fitted with several seeds at that choice, and
shown are means and standard deviations. The network is that of ``table=linear_networks``.

The machines of a likelihood predict the most probable label vector, which is what an exact match asks for,
but for one that predicts the modes of its labels' marginals; MSSVM predicts by the inference of its training.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from reproductions.cells import Cell, Result
from reproductions.evaluation import measure, part
from reproductions.linear_networks import METHODS as NETWORKS
from reproductions.linear_networks import METRICS, cross_validate
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, KFold
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import MinMaxScaler, Normalizer

from lmbm_torch.data import MultilabelData, load
from lmbm_torch.estimators import ConditionalRBMClassifier

COLUMNS = {
    "exact_match": "exact match",
    "sample_f1": "sample F1",
    "hamming_loss": "Hamming loss",
    "macro_f1": "macro F1",
    "micro_f1": "micro F1",
    "C": "C",
    "num_hidden": "hidden units",
    "scaling": "scaling",
    "cross_validated": "cross-validated exact match",
    "fit_seconds": "fit (s)",
}
NETWORK = "LMSBN, F-score order"
MACHINES = {
    "CRBM, exact likelihood": {},
    "CRBM, exact likelihood, modes of marginals": {"decoder": "matched"},
    "CRBM, MLE-BP": {"objective": "bethe"},
    "CRBM, MSSVM": {"objective": "marginal_hinge"},
}
"""What differs from the classifier's defaults."""
SCALINGS = (Normalizer(), MinMaxScaler(clip=True))


def cells(
    sets: Sequence[str],
    folder: str,
    penalties: Sequence[float],
    num_hidden: Sequence[int],
    seeds: Sequence[int],
) -> Iterator[Cell]:
    """One cell for each data set, found in ``folder``, and method."""
    grid = {"model__C": list(penalties), "model__num_hidden": list(num_hidden), "scaling": list(SCALINGS)}
    for name in sets:
        data = load(name, folder)
        yield Cell(name, NETWORK, partial(cross_validate, data, *NETWORKS[NETWORK]))
        for method, settings in MACHINES.items():
            model = ConditionalRBMClassifier(**settings)
            yield Cell(name, method, partial(_machine, data, model, grid, seeds))


def _machine(
    data: MultilabelData, model: ConditionalRBMClassifier, grid: Mapping[str, Any], seeds: Sequence[int]
) -> Result:
    """Choose with the first seed, fit with all of them."""
    X, Y = part(data, data.train)
    pipeline = Pipeline([("scaling", SCALINGS[0]), ("model", model.set_params(random_state=seeds[0]))])
    search = GridSearchCV(
        pipeline,
        grid,
        cv=KFold(5, shuffle=True, random_state=0),
        scoring="accuracy",
        refit=False,
        error_score="raise",  # pyright: ignore[reportArgumentType]
    ).fit(X, Y)
    chosen, started = search.best_params_, time.perf_counter()
    found = []
    for seed in seeds:
        fitted: Any = clone(pipeline)
        fitted.set_params(**chosen, model__random_state=seed).fit(X, Y)
        found.append(measure(fitted, data, METRICS))
    return {
        **{name: _spread([each[name] for each in found]) for name in METRICS},
        "C": chosen["model__C"],
        "num_hidden": chosen["model__num_hidden"],
        "scaling": type(chosen["scaling"]).__name__,
        "cross_validated": search.best_score_,
        "fit_seconds": (time.perf_counter() - started) / len(seeds),
    }


def _spread(values: Sequence[float]) -> str:
    return f"{statistics.mean(values):.3f} ± {statistics.stdev(values):.3f}"
