"""Label sets with missing labels: trees for all labels together beside trees for each label.

tox21 of the folder that LMBM_DATA names, a sixth of the labels missing, in its split by scaffolds; and six
complete sets, half of the training labels hidden at random, a third of the rows to test, in stratified
splits. LabelBoostingClassifier and LabelForestClassifier see all rows; LightGBM and, on tox21, random forests
of scikit-learn are fitted for each label to the rows with a known label; all at their defaults. ROC AUC and
log loss are means over labels, of known test labels; macro F1 is of probabilities above one half and, on the
six sets, of one threshold for each label, chosen by a joint head of independent labels on three folds of the
training part. Seconds of CPU time are of all fits: four, and on tox21 one.

Each cell is written as soon as it is measured; a second call goes on from there. Needs XGBoost and LightGBM.

    OMP_NUM_THREADS=1 LMBM_DATA=<folder> python scripts/bench/missing_labels.py [--splits 3]
"""

from __future__ import annotations

import csv
import os
import time
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from measuring import described, show, table, told, write_csv
from scipy.sparse import csr_array
from sklearn.ensemble import RandomForestClassifier
from sklearn.metrics import f1_score, log_loss, roc_auc_score

from lmbm_torch.data import read_npz
from lmbm_torch.data.splits import stratified_split
from lmbm_torch.estimators import JointClassifier, JointHead, LabelBoostingClassifier, LabelForestClassifier
from lmbm_torch.estimators.joint.bases import LabelScorer

SETS = ("tox21", "flags", "chd_49", "scene", "yeast", "water_quality", "langlog")
METHODS = ("LabelBoostingClassifier", "LabelForestClassifier", "LightGBM", "random forests")
KEYS = ("data", "method", "split")
FIGURES = ("roc_auc", "log_loss", "macro_f1", "macro_f1_of_thresholds", "seconds")
HIDDEN, TEST_FRACTION, FOLDS, LEAST = 0.5, 1 / 3, 3, 1e-6


def main() -> None:
    parser = described(__file__, __doc__)
    parser.add_argument("--splits", type=int, default=3)
    parser.add_argument("--sets", nargs="+", default=SETS)
    parser.add_argument("--methods", nargs="+", default=METHODS)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    arguments.output.mkdir(parents=True, exist_ok=True)
    cells = arguments.output / "cells.csv"
    found = read(cells)
    done = {tuple(row[name] for name in KEYS) for row in found}
    for data in arguments.sets:
        for split in range(1 if data == "tox21" else arguments.splits):
            for method in arguments.methods:
                is_peer_of_tox21_alone = method == "random forests" and data != "tox21"
                if not is_peer_of_tox21_alone and (data, method, str(split)) not in done:
                    found.append(
                        {name: str(value) for name, value in told(cell(data, method, split)).items()}
                    )
                    write_csv(cells, found)
    with table(arguments.output, arguments.name):
        rows = means(found)
        write_csv(arguments.output / "table.csv", rows)
    show(rows, "Missing labels")


def read(path: Path) -> list[dict[str, str]]:
    """Return rows of earlier calls."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return [*csv.DictReader(file)]


def parts(data: str, split: int) -> tuple[Any, ...]:
    """Return features and labels of the training part and of the test part, NaN for missing labels."""
    path = Path(os.environ["LMBM_DATA"]) / data / f"{data}.npz"
    if data == "tox21":
        with np.load(path) as file:
            rows = tuple(file[f"x_{name}"] for name in ("data", "indices", "indptr"))
            X: Any = csr_array(rows, shape=tuple(file["x_shape"])).astype(np.float64)
            Y, train, test = file["y"].astype(np.float64), file["train_index"], file["test_index"]
    else:
        known = read_npz(path)
        X, Y = known.features.astype(np.float64), known.labels.astype(np.float64)
        train, test = stratified_split(Y, TEST_FRACTION, split)
        hidden = np.random.default_rng(split).random(Y[train].shape) < HIDDEN
        Y[train] = np.where(hidden, np.nan, Y[train])
    return X[train], Y[train], X[test], Y[test]


def model_of(method: str, split: int) -> Any:
    """Return the unfitted model; a model of single labels is fitted label by label."""
    if method == "LabelBoostingClassifier":
        return LabelBoostingClassifier(random_state=split)
    if method == "LabelForestClassifier":
        return LabelForestClassifier(random_state=split)
    if method == "random forests":
        return RandomForestClassifier(random_state=split)
    return import_module("lightgbm").LGBMClassifier(verbose=-1, n_jobs=1, random_state=split)


def cell(data: str, method: str, split: int) -> dict[str, Any]:
    """Return the figures of a method on a split."""
    X, Y, tests, truth = parts(data, split)
    base, began = model_of(method, split), time.process_time()
    thresholded = np.full(truth.shape, np.nan)
    if data == "tox21":
        present = LabelScorer(base).fit(X, Y).scores(tests)
    else:
        head = JointHead("macro_f1", structure="independent")
        model = JointClassifier(base, head, cv=FOLDS, random_state=split).fit(X, Y)
        present, thresholded = model.base_scores(tests), model.predict(tests)
    seconds = time.process_time() - began
    columns = [
        (truth[known, label], present[known, label].clip(LEAST, 1 - LEAST))
        for label, known in enumerate(~np.isnan(truth).T)
        if len(np.unique(truth[known, label])) == 2
    ]
    return {
        **dict(zip(KEYS, (data, method, split), strict=True)),
        "roc_auc": np.mean([roc_auc_score(*each) for each in columns]),
        "log_loss": np.mean([log_loss(*each) for each in columns]),
        "macro_f1": macro_f1(present > 0.5, truth),
        "macro_f1_of_thresholds": np.nan if data == "tox21" else macro_f1(thresholded, truth),
        "seconds": seconds,
    }


def macro_f1(predicted: np.ndarray, truth: np.ndarray) -> float:
    """Return the mean over labels of the F1 of known labels."""
    options: Any = {"zero_division": 0}
    return float(
        np.mean(
            [
                f1_score(truth[known, label], predicted[known, label], **options)
                for label, known in enumerate(~np.isnan(truth).T)
            ]
        )
    )


def means(cells: list[dict[str, str]]) -> list[dict[str, Any]]:
    """Return means over splits for each set and method."""
    groups: dict[tuple[str, str], list[dict[str, str]]] = {}
    for each in cells:
        groups.setdefault((each["data"], each["method"]), []).append(each)
    return [
        {"data": data, "method": method, "splits": len(own)}
        | {name: float(np.mean([float(each[name]) for each in own])) for name in FIGURES}
        for (data, method), own in groups.items()
    ]


if __name__ == "__main__":
    main()
