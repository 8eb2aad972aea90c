"""Chains of forests: what exact joint decoding gains over independent forests and over the greedy chain.

Ten-fold cross-validation over all instances, folds and forests drawn from each seed; features as they are.
The chain's links are those of scikit-learn's ``ClassifierChain``, in the order of the columns; one fit is
decoded greedily and exactly, for the most probable labelling. Nothing is chosen, so nothing is tuned.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.ensemble import ExtraTreesClassifier, RandomForestClassifier
from sklearn.model_selection import KFold
from sklearn.multioutput import MultiOutputClassifier

from lmbm_torch.compare.tables import Result
from lmbm_torch.compare.trials import scores
from lmbm_torch.data import MultilabelData, read_npz
from lmbm_torch.estimators import ProbabilisticClassifierChain
from reproduce.cells import Cell

METRICS = ("exact_match", "sample_f1", "hamming_loss", "macro_f1")
COLUMNS = {
    "exact_match": "exact match",
    "exact_match_sd": "± (seeds)",
    "sample_f1": "sample F1",
    "hamming_loss": "Hamming loss",
    "macro_f1": "macro F1",
    "proven": "proven optimal",
    "decoding_ms": "decoding (ms a row)",
    "seeds": "seeds",
}
FOLDS = 10
FORESTS = {
    "extra trees": partial(ExtraTreesClassifier, 200),
    "random forest": partial(RandomForestClassifier, 100),
}
"""Of 200 and of 100 trees."""
INDEPENDENT, GREEDY, EXACT = "independent", "greedy chain", "joint chain"
SEARCHES = {
    GREEDY: {"search": "beam", "beam_width": 1},
    EXACT: {"search": "best_first"},
}


def cells(sets: Sequence[str], forests: Sequence[str], seeds: int, folder: str) -> Iterator[Cell]:
    """Yield one cell for each seed, forest and data set in ``folder``, forest by forest.

    Args:
        sets: names of folders.
        forests: of :data:`FORESTS`.
        seeds: how many.
        folder: of the sets.
    """
    loaded = {name: read_npz(Path(folder) / name / f"{name}.npz") for name in sets}
    for forest in forests:
        for seed in range(seeds):
            for name in sets:
                yield Cell(
                    name, f"{forest}, seed {seed}", partial(cross_validate, loaded[name], forest, seed)
                )


def cross_validate(data: MultilabelData, forest: str, seed: int) -> Result:
    """Return each decoding's metrics, means over folds by instances, and the cost of exact decoding."""
    links = FORESTS[forest](random_state=seed)
    X, Y = np.asarray(data.features, np.float64), data.labels.astype(int)
    predicted = {method: np.empty_like(Y) for method in (INDEPENDENT, *SEARCHES)}
    spent, proven = dict.fromkeys(predicted, 0.0), dict.fromkeys(predicted, 0)
    for train, test in KFold(FOLDS, shuffle=True, random_state=seed).split(X):
        independent = MultiOutputClassifier(links).fit(X[train], Y[train])
        predicted[INDEPENDENT][test] = independent.predict(X[test])
        chain = ProbabilisticClassifierChain(links, node_limit=None).fit(X[train], Y[train])
        for method, settings in SEARCHES.items():
            started = time.process_time()
            decoding = chain.set_params(**settings).decode(X[test])
            spent[method] += time.process_time() - started
            predicted[method][test] = decoding.labels.numpy()
            proven[method] += int(decoding.status.exact.sum())
    result: dict[str, Any] = {"forest": forest}
    for method, labels in predicted.items():
        result |= {f"_{method} {key}": value for key, value in scores(labels, Y, METRICS).items()}
        if method != INDEPENDENT:
            result[f"_{method} decoding_ms"] = 1e3 * spent[method] / len(X)
            result[f"_{method} proven"] = proven[method] / len(X)
    return result


def summary(results: Sequence[Result]) -> list[Result]:
    """Return a row for each set, forest and decoding: means over seeds."""
    rows = []
    names = (dict.fromkeys(str(result[key]) for result in results) for key in ("data", "forest"))
    for name, forest in product(*names):
        own = [result for result in results if (result["data"], result["forest"]) == (name, forest)]
        if not own:
            continue
        for method in (INDEPENDENT, *SEARCHES):
            row: Result = {"data": name, "method": f"{forest}, {method}", "seeds": len(own)}
            for key in (*METRICS, "proven", "decoding_ms"):
                found = [each[f"_{method} {key}"] for each in own if f"_{method} {key}" in each]
                row[key] = statistics.mean(found) if found else None
                if key == "exact_match" and len(found) > 1:
                    row["exact_match_sd"] = statistics.stdev(found)
            rows.append(row)
    return rows
