"""The joint head over models of single labels, beside the cheap rules: exact match, F1 and log loss.

Sets of the folder that LMBM_DATA names, a third of the first 3,000 rows to test, in stratified splits; and
goemotions in its published parts, the model learned from the training part and the head from the scores of
the development part. Models: scikit-learn's extra trees, logistic regression and histogram boosting label by
label; CatBoost, LightGBM and XGBoost where these are installed. Scores are out of fold, by five folds. For
exact match, for sample F1 and for macro F1 a head of the metric is compared with the best of its three cheap
rules on its folds: one threshold, a threshold for each label, the most probable label. Log losses are of
whole labellings, in nats; that of the model takes labels as independent. Seconds of CPU time, of the model's
six fits and of a head.

Each cell is written as soon as it is measured, and so are the scores of each model; a second call goes on
from there.

    OMP_NUM_THREADS=1 LMBM_DATA=<folder> python scripts/bench/joint_heads.py [--splits 3] [--seconds 2400]
"""

from __future__ import annotations

import csv
import gzip
import os
import time
import warnings
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from measuring import described, show, table, told, write_csv
from scipy.sparse import issparse
from sklearn.ensemble import ExtraTreesClassifier, HistGradientBoostingClassifier
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MaxAbsScaler, StandardScaler

from lmbm_torch.data import read_npz
from lmbm_torch.data.splits import stratified_split
from lmbm_torch.estimators import JointClassifier, JointHead
from lmbm_torch.estimators.joint import rules
from lmbm_torch.files import replacing

SETS = (
    *("flags", "chd_49", "foodtruck", "scene", "yeast", "water_quality", "genbase", "goemotions"),
    *("langlog", "mediamill_subset", "tmc2007_500"),
)
FIRST_ROWS, TEST_FRACTION = 3000, 1 / 3
COLUMNS = (
    *("data", "model", "split", "exact_match", "exact_match_of_rule", "sample_f1", "sample_f1_of_rule"),
    *("macro_f1", "macro_f1_of_rule", "log_loss", "log_loss_of_model", "answered_by", "rule"),
    *("model_seconds", "head_seconds"),
)


def main() -> None:
    parser = described(__file__, __doc__)
    parser.add_argument("--splits", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="CPU time; no cell begins later")
    parser.add_argument("--sets", nargs="+", default=SETS)
    parser.add_argument("--models", nargs="+", default=[name for name, here in installed().items() if here])
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    arguments.output.mkdir(parents=True, exist_ok=True)
    cells = arguments.output / "cells.csv"
    found, missed = read(cells), []
    (arguments.output / "scores").mkdir(exist_ok=True)
    for key in keys(arguments):
        if any(tuple(row[name] for name in COLUMNS[:3]) == tuple(map(str, key)) for row in found):
            continue
        if time.process_time() > arguments.seconds:
            missed.append(" ".join(map(str, key)))
            continue
        row = told(measured(*key, arguments.output / "scores"))
        found.append({name: str(value) for name, value in row.items()})
        write_csv(cells, found)
    with table(arguments.output, arguments.name):
        rows = [*means(found)]
        write_csv(arguments.output / "table.csv", rows)
    show(rows, "Joint heads")
    if missed:
        print("Not reached:", "; ".join(missed))


def read(path: Path) -> list[dict[str, str]]:
    """Return rows of earlier calls."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return [*csv.DictReader(file)]


def keys(arguments: Any) -> Iterator[tuple[str, str, int]]:
    """Yield sets, models and splits, a split of every set before the next one."""
    for split in range(arguments.splits):
        for data in arguments.sets:
            for model in arguments.models:
                if data != "goemotions" or (split == 0 and model == "logistic regression"):
                    yield data, model, split


def installed() -> dict[str, bool]:
    """Return names of the models, and whether the library of each is installed."""
    return {
        "extra trees": True,
        "logistic regression": True,
        "histogram boosting": True,
        "CatBoost": find_spec("catboost") is not None,
        "LightGBM": find_spec("lightgbm") is not None,
        "XGBoost": find_spec("xgboost") is not None,
    }


def model_of(name: str, is_sparse: bool) -> Any:
    """Return the unfitted model; a model of single labels is fitted label by label."""
    scaler = MaxAbsScaler() if is_sparse else StandardScaler()
    make: dict[str, Callable[[], Any]] = {
        "extra trees": lambda: ExtraTreesClassifier(200, random_state=0),
        "logistic regression": lambda: make_pipeline(
            scaler, LogisticRegression(C=1.0 if is_sparse else 0.1, max_iter=500)
        ),
        "histogram boosting": lambda: HistGradientBoostingClassifier(max_iter=60, random_state=0),
        "CatBoost": lambda: import_module("catboost").CatBoostClassifier(
            iterations=200, loss_function="MultiLogloss", verbose=0, thread_count=1, random_seed=0
        ),
        "LightGBM": lambda: import_module("lightgbm").LGBMClassifier(
            n_estimators=60, verbose=-1, n_jobs=1, random_state=0
        ),
        "XGBoost": lambda: import_module("xgboost").XGBClassifier(
            n_estimators=60, multi_strategy="multi_output_tree", n_jobs=1, random_state=0
        ),
    }
    return make[name]()


def measured(data: str, model: str, split: int, kept: Path) -> dict[str, Any]:
    """Return a cell, from the scores in a folder or from new scores."""
    path = kept / f"{data}-{model.replace(' ', '_')}-{split}.npz"
    if not path.exists():
        found = published_parts() if data == "goemotions" else out_of_fold(data, model, split)
        with replacing(path) as stream:
            np.savez(
                stream, **dict(zip(("scores", "labels", "tests", "truth", "seconds"), found, strict=True))
            )
    with np.load(path) as file:
        scores, labels, tests, truth = (file[name] for name in ("scores", "labels", "tests", "truth"))
        seconds = float(file["seconds"])
    clipped = tests.clip(1e-3, 1 - 1e-3)
    cell: dict[str, Any] = {"data": data, "model": model, "split": split}
    for metric in ("exact_match", "f1", "macro_f1"):
        began = time.process_time()
        head = JointHead(metric, random_state=split).fit(scores, labels)
        answers = {"": head.predict(tests), "_of_rule": by_best_rule(head, scores, labels, tests)}
        head_seconds = time.process_time() - began
        for whose, predicted in answers.items():
            if metric == "exact_match":
                cell[f"exact_match{whose}"] = (predicted == truth).all(1).mean()
            elif metric == "f1":
                both, sizes = (predicted * truth).sum(1), predicted.sum(1) + truth.sum(1)
                cell[f"sample_f1{whose}"] = np.where(sizes == 0, 1, 2 * both / np.maximum(sizes, 1)).mean()
            else:
                options: Any = {"average": "macro", "zero_division": 0}
                cell[f"macro_f1{whose}"] = f1_score(truth, predicted, **options)
        if metric == "exact_match":
            cell["answered_by"], cell["rule"] = head.rule_ or head.structure_, best_rule(head)
            cell["model_seconds"], cell["head_seconds"] = seconds, head_seconds
            cell["log_loss"] = -head.log_prob(tests, truth).mean()
            cell["log_loss_of_model"] = -np.log(np.where(truth == 1, clipped, 1 - clipped)).sum(1).mean()
    return {name: cell[name] for name in COLUMNS}


def best_rule(head: JointHead) -> str:
    """Return the cheap rule that is best on the folds of the head."""
    return max(rules.RULES, key=head.cross_validated_.__getitem__)


def by_best_rule(head: JointHead, scores: np.ndarray, labels: np.ndarray, tests: np.ndarray) -> np.ndarray:
    """Return labels of the best cheap rule."""
    rows, others = (head._log_odds(each) for each in (scores, tests))
    thresholds = rules.learned(best_rule(head), head.metric, rows, labels, np.ones(len(rows)))
    return rules.predicted(thresholds, others)


def out_of_fold(data: str, model: str, split: int) -> tuple[Any, ...]:
    """Return scores and labels of training rows (out of fold) and test rows, and seconds of the fits."""
    found = read_npz(Path(os.environ["LMBM_DATA"]) / data / f"{data}.npz")
    X, Y = found.features[:FIRST_ROWS].astype(np.float64), found.labels[:FIRST_ROWS].astype(int)
    if issparse(X) and model not in ("extra trees", "logistic regression"):
        X = X.toarray()
    train, test = stratified_split(Y, TEST_FRACTION, split)
    kept: list[np.ndarray] = []

    class Keeping(JointHead):
        """A head that keeps the scores and learns nothing."""

        def fit(self, scores: Any, *_: Any) -> Keeping:
            kept.append(scores)
            self.n_features_in_, self.label_names_, self.binarizer_ = scores.shape[1], None, None
            self.classes_ = np.tile([0, 1], (scores.shape[1], 1))
            return self

    began = time.process_time()
    joint = JointClassifier(model_of(model, issparse(X)), Keeping(), random_state=split)
    tests = joint.fit(X[train], Y[train]).base_scores(X[test])
    return kept[0], Y[train], tests, Y[test], time.process_time() - began


def published_parts() -> tuple[Any, ...]:
    """Return scores and labels of goemotions' dev and test parts, by logistic regressions of tf-idf."""
    texts, labels = {}, {}
    for part in ("train", "dev", "test"):
        path = Path(os.environ["LMBM_DATA"]) / "goemotions" / f"{part}.tsv.gz"
        with gzip.open(path, "rt", encoding="utf-8") as file:
            rows = [line.rstrip("\n").split("\t") for line in file]
        texts[part] = [row[0] for row in rows]
        labels[part] = np.array([np.isin(np.arange(28), list(map(int, row[1].split(",")))) for row in rows])
    began = time.process_time()
    words = TfidfVectorizer(ngram_range=(1, 2), min_df=2, sublinear_tf=True)
    X = words.fit_transform(texts["train"])
    models = [LogisticRegression(C=3, solver="liblinear").fit(X, own) for own in labels["train"].T]
    scores = {
        part: np.column_stack([each.predict_proba(words.transform(texts[part]))[:, 1] for each in models])
        for part in ("dev", "test")
    }
    seconds = time.process_time() - began
    return scores["dev"], labels["dev"].astype(int), scores["test"], labels["test"].astype(int), seconds


def means(cells: list[dict[str, str]]) -> Iterator[dict[str, Any]]:
    """Yield a row for all cells, and a row of means over splits for each set and model."""
    groups: dict[tuple[str, str], list[dict[str, str]]] = {}
    for cell in cells:
        groups.setdefault((cell["data"], cell["model"]), []).append(cell)
    rows: list[dict[str, Any]] = [
        {"data": data, "model": model}
        | {name: _mean(own, name) for name in COLUMNS[3:11]}
        | {"answered_by": " / ".join(cell["answered_by"] for cell in own)}
        | {name: _mean(own, name) for name in COLUMNS[-2:]}
        | {"splits": len(own)}
        for (data, model), own in groups.items()
    ]
    every = {name: float(np.mean([row[name] for row in rows])) for name in (*COLUMNS[3:11], *COLUMNS[-2:])}
    first = {"data": "all sets", "model": "all models", **every, "answered_by": "", "splits": len(cells)}
    yield {name: first[name] for name in rows[0]}
    yield from rows


def _mean(cells: list[dict[str, str]], name: str) -> float:
    return float(np.mean([float(cell[name]) for cell in cells]))


if __name__ == "__main__":
    main()
