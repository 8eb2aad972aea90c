"""Conditional RBMs as multi-label classifiers on Scene and Yeast, beside a sigmoid belief network.

Every method chooses C and the scaling of its features by five-fold cross-validated exact match on the
training part, the machines their number of hidden units too where several are configured; the test part is
used once. The training of machines is not convex: they are fitted with several seeds at that choice, and
shown are means and standard deviations. The network is that of ``table=linear_networks``.

Machines predict as the classifier does by default: most probable label vectors, which is what an exact match
asks for, found by enumeration where it is cheap. One row has the modes of the labels' marginals instead, at
the same choice.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, KFold
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import MinMaxScaler, Normalizer

from lmbm_torch.compare.tables import Result
from lmbm_torch.compare.trials import measure, part
from lmbm_torch.data import MultilabelData, load
from lmbm_torch.estimators import ConditionalRBMClassifier
from reproduce.cells import Cell
from reproduce.linear_networks import METHODS as NETWORKS
from reproduce.linear_networks import METRICS, cross_validate

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
LIKELIHOOD = "CRBM, exact likelihood"
MODES = "CRBM, exact likelihood, modes of marginals"
MACHINES = {LIKELIHOOD: "mle", "CRBM, MLE-BP": "mle_bp", "CRBM, MSSVM": "mssvm"}
SCALINGS = (Normalizer(), MinMaxScaler(clip=True))


def cells(
    sets: Sequence[str],
    folder: str,
    penalties: Sequence[float],
    num_hidden: Sequence[int],
    seeds: Sequence[int],
) -> Iterator[Cell]:
    """Yield one cell for each data set, found in ``folder``, and method."""
    grid = {"model__C": list(penalties), "model__num_hidden": list(num_hidden), "scaling": list(SCALINGS)}
    for name in sets:
        data = load(name, folder)
        yield Cell(name, NETWORK, partial(cross_validate, data, *NETWORKS[NETWORK]))
        for method, objective in MACHINES.items():
            yield Cell(name, method, partial(_chosen, data, _pipeline(objective=objective), grid, seeds))
        modes = _pipeline(objective=MACHINES[LIKELIHOOD], decoder="matched")
        yield Cell(name, MODES, partial(_at_the_choice_of, data, modes, seeds), after=LIKELIHOOD)


def _pipeline(**settings: Any) -> Pipeline:
    return Pipeline([("scaling", SCALINGS[0]), ("model", ConditionalRBMClassifier(**settings))])


def _chosen(
    data: MultilabelData, pipeline: Pipeline, grid: Mapping[str, Any], seeds: Sequence[int]
) -> Result:
    """Choose with the first seed, fit with all of them."""
    X, Y = part(data, data.train)
    search = GridSearchCV(
        pipeline.set_params(model__random_state=seeds[0]),
        grid,
        cv=KFold(5, shuffle=True, random_state=0),
        scoring="accuracy",
        refit=False,
        error_score="raise",  # pyright: ignore[reportArgumentType]
    ).fit(X, Y)
    fitted = _fitted(data, pipeline.set_params(**search.best_params_), seeds)
    return {**fitted, "cross_validated": search.best_score_}


def _at_the_choice_of(data: MultilabelData, pipeline: Pipeline, seeds: Sequence[int], base: Result) -> Result:
    """Fit what another machine's cross-validation has chosen."""
    scaling = next(each for each in SCALINGS if type(each).__name__ == base["scaling"])
    choice = {"scaling": scaling, "model__C": base["C"], "model__num_hidden": base["num_hidden"]}
    return _fitted(data, pipeline.set_params(**choice), seeds)


def _fitted(data: MultilabelData, pipeline: Pipeline, seeds: Sequence[int]) -> Result:
    """Return the metrics' means and standard deviations over the seeds."""
    X, Y = part(data, data.train)
    started, found = time.perf_counter(), []
    for seed in seeds:
        fitted: Any = clone(pipeline)
        fitted.set_params(model__random_state=seed).fit(X, Y)
        found.append(measure(fitted, data, METRICS))
    settings = pipeline.get_params()
    return {
        **{name: _spread([each[name] for each in found]) for name in METRICS},
        "C": settings["model__C"],
        "num_hidden": settings["model__num_hidden"],
        "scaling": type(settings["scaling"]).__name__,
        "fit_seconds": (time.perf_counter() - started) / len(seeds),
    }


def _spread(values: Sequence[float]) -> str:
    deviation = f" ± {statistics.stdev(values):.3f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.3f}{deviation}"
