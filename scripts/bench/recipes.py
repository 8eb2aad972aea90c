"""Recipes of training compared: units of features, order of labels and weight of the losses.

Ten sets of the folder that LMBM_DATA names, each in resampled splits, a third of the instances to test; of
tmc2007_500 and langlog the first 3,000 rows. Every recipe is given to the estimator from outside: features in
its units, C a number. Means over splits of exact match, sample F1 and macro F1, and CPU time in seconds. A
recipe whose fits take more than ``--cell`` seconds on a set is tried on fewer splits there; with
``--seconds`` nothing begins after so many.

Units: ``own``, those of lmbm_torch.fitting.recipe (each column in two standard deviations or, where it
is mostly 0, in its range, all divided by the root of the mean of ‖x‖²); ``rows``, those of
lmbm_torch.data.scaling.usual (columns standardised, rows of norm 1); ``own rows``, the first ones with rows
of norm 1; ``raw``, as they are.

    OMP_NUM_THREADS=1 LMBM_DATA=<folder> python scripts/bench/recipes.py [--splits 5] [--seconds 900]
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from measuring import described, show, table, told, write_csv
from scipy.sparse import issparse
from sklearn.metrics import f1_score
from sklearn.preprocessing import normalize

from lmbm_torch.data import read_npz
from lmbm_torch.data.scaling import usual
from lmbm_torch.data.splits import stratified_split
from lmbm_torch.data.tensors import to_features, to_tensor
from lmbm_torch.estimators import LMBMClassifier, LMSBNClassifier, StructuralSVMClassifier
from lmbm_torch.fitting.recipe import column_units, scaled

SETS = (
    "flags",
    "foodtruck",
    "chd_49",
    "water_quality",
    "genbase",
    "scene",
    "yeast",
    "langlog",
    "tmc2007_500",
    "mediamill_subset",
)
FIRST_ROWS = 3000
TEST_FRACTION = 1 / 3
METRICS = ("exact_match", "sample_f1", "macro_f1")
# Enough for what all recipes are compared by; a labelling that takes more is the best found.
NODES = 10_000
# Machines and kernels of more labels take minutes a split.
FEW_LABELS = 30

# Model → (units, order or coupling penalty, C); the first of a model is that of its class, the second that of
# `lmbm train data=table`, as they were before the recipes became one.
RECIPES: dict[str, list[tuple[str, str | float, float]]] = {
    "network": [
        ("own", "f_score", 1.0),
        ("rows", "index", 1.0),
        ("rows", "f_score", 1.0),
        ("own", "index", 1.0),
        ("own rows", "f_score", 1.0),
        ("own", "f_score", 0.3),
        ("own", "f_score", 3.0),
        ("rows", "f_score", 3.0),
        ("own rows", "f_score", 3.0),
        ("own", "index", 3.0),
        ("rows", "index", 3.0),
        ("own", "f_score", 10.0),
        ("rows", "f_score", 10.0),
    ],
    "machine": [
        ("own", "scale", 1.0),
        ("rows", 1.0, 1.0),
        ("rows", "scale", 1.0),
        ("own", 1.0, 1.0),
        ("own", "scale", 3.0),
        ("own", "scale", 10.0),
        ("rows", "scale", 3.0),
    ],
    "RBF network": [
        ("raw", "f_score", 1.0),
        ("rows", "f_score", 1.0),
        ("own", "f_score", 1.0),
        ("own rows", "f_score", 1.0),
        ("raw", "f_score", 3.0),
        ("own", "f_score", 3.0),
        ("own", "f_score", 10.0),
    ],
    "structural SVM": [
        ("own", 1.0, 1.0),
        ("rows", 1.0, 1.0),
        ("own", 1.0, 3.0),
        ("own", 1.0, 10.0),
    ],
}


def main() -> None:
    parser = described(__file__, __doc__)
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--cell", type=float, default=20.0, help="seconds of a split")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="of all splits")
    parser.add_argument("--models", nargs="+", default=list(RECIPES))
    parser.add_argument("--sets", nargs="+", default=SETS)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    found: dict[tuple[str, ...], list[dict[str, float]]] = {}
    for split in range(arguments.splits):
        for name in arguments.sets:
            X, Y = loaded(name)
            train, test = stratified_split(Y, TEST_FRACTION, split)
            for model in arguments.models:
                for recipe in RECIPES[model] if model == "network" or Y.shape[1] <= FEW_LABELS else ():
                    cell = found.setdefault((name, model, *map(str, recipe)), [])
                    slow = any(each["seconds"] > arguments.cell for each in cell)
                    if not slow and time.process_time() < arguments.seconds:
                        cell.append(tried(model, recipe, X[train], Y[train], X[test], Y[test], split))
                        told({"cell": " ".join([name, model, *map(str, recipe)])} | cell[-1])
    rows = [*rows_of(found, arguments.models)]
    with table(arguments.output, arguments.name):
        write_csv(arguments.output / "table.csv", rows)
    show([row for row in rows if row["data"] == "all sets"], "Recipes")


def loaded(name: str) -> tuple[Any, np.ndarray]:
    """Return features and labels of a set, or of its first rows."""
    data = read_npz(Path(os.environ["LMBM_DATA"]) / name / f"{name}.npz")
    return data.features[:FIRST_ROWS].astype(np.float64), data.labels[:FIRST_ROWS].astype(int)


def tried(
    model: str,
    recipe: tuple[str, Any, float],
    X: Any,
    Y: np.ndarray,
    tests: Any,
    truth: np.ndarray,
    split: int,
) -> dict[str, float]:
    """Return each metric on the test part, and seconds of the fit and the prediction."""
    units, other, C = recipe
    began = time.process_time()
    transform = UNITS[units](X)
    common: dict[str, Any] = {"C": C, "random_state": split}
    if model == "machine":
        fitted: Any = LMBMClassifier(coupling_penalty=other, **common)
    elif model == "structural SVM":
        fitted = StructuralSVMClassifier(coupling_penalty=other, **common)
    else:
        kernel = "linear" if model == "network" else "rbf"
        fitted = LMSBNClassifier(kernel=kernel, ordering=other, node_limit=NODES, **common)
    predicted = fitted.fit(transform(X), Y).predict(transform(tests))
    score: Any = f1_score
    return {
        "exact_match": float((predicted == truth).all(1).mean()),
        "sample_f1": float(score(truth, predicted, average="samples", zero_division=1)),
        "macro_f1": float(score(truth, predicted, average="macro", zero_division=0)),
        "seconds": time.process_time() - began,
    }


def _own(X: Any) -> Callable[[Any], Any]:
    units = column_units(X)
    return lambda rows: scaled(rows, *units)


def _rows(X: Any) -> Callable[[Any], Any]:
    scaling = usual(X)
    return lambda rows: to_features(scaling.transform(to_tensor(rows)))


def _own_rows(X: Any) -> Callable[[Any], Any]:
    own = _own(X)
    return lambda rows: normalize(own(rows))


UNITS: dict[str, Callable[[Any], Callable[[Any], Any]]] = {
    "own": _own,
    "rows": _rows,
    "own rows": _own_rows,
    "raw": lambda X: lambda rows: rows if not issparse(rows) else rows.tocsr(),
}


def rows_of(
    found: dict[tuple[str, ...], list[dict[str, float]]], models: list[str]
) -> Iterator[dict[str, Any]]:
    """Yield a row for each set and recipe; and means over the sets that all recipes of the model have."""
    means = {
        key: {name: float(np.mean([each[name] for each in cell])) for name in (*METRICS, "seconds")}
        for key, cell in found.items()
        if cell
    }
    for model in models:
        keys = [key for key in means if key[1] == model]
        for recipe in dict.fromkeys(key[2:] for key in keys):
            own = [means[key] for key in keys if key[2:] == recipe]
            every = {name: float(np.mean([each[name] for each in own])) for name in (*METRICS, "seconds")}
            yield _row(("all sets", model, *recipe), every, len(own))
    for key, values in means.items():
        yield _row(key, values, len(found[key]))


def _row(key: tuple[str, ...], values: dict[str, float], count: int) -> dict[str, Any]:
    name, model, units, other, C = key
    named = {"data": name, "model": model, "units": units, "order_or_penalty": other, "C": C}
    return {**named, **values, "splits_or_sets": count}


if __name__ == "__main__":
    main()
