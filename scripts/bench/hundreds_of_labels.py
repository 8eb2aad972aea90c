"""The automatic choice among hundreds of labels beside logistic regressions with a threshold.

Each search has ``--budget`` seconds of CPU time; ``seconds`` is what the fit took. The baseline is a logistic
regression for each label of the same features, scaled, with C and a common threshold for the metric chosen by
five-fold cross-validation. Sets without a published split lose a fifth of their rows for testing. Of
delicious the first rows and the most frequent labels are taken: 5,000 rows of 160 labels, 4,500 of 370.
Finished cells of an interrupted run, in ``table.csv``, are not computed again.

    LMBM_DATA=… OMP_NUM_THREADS=1 python scripts/bench/hundreds_of_labels.py [--sets langlog …] [--metrics …]
"""

from __future__ import annotations

import csv
import time
import warnings
from typing import Any

import numpy as np
from measuring import described, show, table, told, write_csv
from scipy.sparse import issparse
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import KFold, train_test_split
from sklearn.preprocessing import MaxAbsScaler, StandardScaler

from lmbm_torch.data import load
from lmbm_torch.data.formats.npz import read_npz
from lmbm_torch.data.named import NAMED_SETS, data_folder
from lmbm_torch.estimators import AutoLabelClassifier
from lmbm_torch.estimators.common.measures import measure

# Name → data set, rows of training and labels; None for all.
SETS = {
    "langlog": ("langlog", None, None),
    "mediamill_subset": ("mediamill_subset", None, None),
    "rcv1_subset1": ("rcv1_subset1", None, None),
    "delicious_160": ("delicious", 5000, 160),
    "delicious_370": ("delicious", 4500, 370),
}
METRICS = ("exact_match", "sample_f1", "macro_f1", "micro_f1")
CS, THRESHOLDS = (0.1, 1.0, 10.0), tuple(np.arange(1, 20) / 20)


def parts(name: str) -> tuple[Any, np.ndarray, Any, np.ndarray]:
    """Return features and labels of the training part and of the test part."""
    source, rows, labels = SETS[name]
    data = load(source) if source in NAMED_SETS else read_npz(data_folder() / source / f"{source}.npz")
    train, test = data.train, data.test
    if not len(test):
        train, test = train_test_split(train, test_size=0.2, random_state=0)
    train = train[:rows]
    frequent = np.sort(np.argsort(-data.labels[train].sum(0), kind="stable")[:labels])
    Y = data.labels[:, frequent].astype(int)
    return data.features[train], Y[train], data.features[test], Y[test]


def probabilities(X: Any, Y: np.ndarray, new: Any, C: float) -> np.ndarray:
    """Return P(y_i = 1 | x) of new rows by a logistic regression for each label."""
    model = LogisticRegression(C=C, solver="liblinear" if issparse(X) else "lbfgs", max_iter=1000)
    found = np.zeros((new.shape[0], Y.shape[1]))
    for label, values in enumerate(Y.T):
        found[:, label] = (
            values[0] if values.min() == values.max() else model.fit(X, values).predict_proba(new)[:, 1]
        )
    return found


def baseline(X: Any, Y: np.ndarray, new: Any, truth: np.ndarray) -> tuple[dict[str, float], float]:
    """Return each metric of the test part and the seconds of CPU time."""
    started = time.process_time()
    scaler = MaxAbsScaler() if issparse(X) else StandardScaler()
    X, new = scaler.fit_transform(X), scaler.transform(new)
    held = {C: np.zeros(Y.shape) for C in CS}
    for train, rows in KFold(5, shuffle=True, random_state=0).split(Y):
        for C in CS:
            held[C][rows] = probabilities(X[train], Y[train], X[rows], C)
    answered = {C: probabilities(X, Y, new, C) for C in CS}
    found = {}
    for metric in METRICS:
        settings = [(C, each) for C in CS for each in THRESHOLDS]
        values = [measure(metric, (held[C] > each).astype(int), Y) for C, each in settings]
        C, each = settings[int(np.argmax(values))]
        found[metric] = measure(metric, (answered[C] > each).astype(int), truth)
    return found, time.process_time() - started


def cells(name: str, metrics: tuple[str, ...], budget: float, done: set[tuple[str, ...]]) -> Any:
    """Yield a row of the table for each method and metric that is not done."""
    X, Y, new, truth = parts(name)
    size = {"set": name, "rows": len(Y), "labels": Y.shape[1]}
    if (name, "logistic regressions", METRICS[0]) not in done:
        found, seconds = baseline(X, Y, new, truth)
        for metric in METRICS:
            yield {
                **size,
                "method": "logistic regressions",
                "metric": metric,
                "value": found[metric],
                "seconds": seconds,
                "chosen": "",
            }
    for metric in metrics:
        if (name, "AutoLabelClassifier", metric) in done:
            continue
        started = time.process_time()
        model = AutoLabelClassifier(metric, time_budget=budget, clock=time.process_time, random_state=0).fit(
            X, Y
        )
        seconds = time.process_time() - started
        families = {row["family"]: None for row in model.table_ if row["weight"]}
        value = measure(metric, model.predict(new), truth)
        yield {
            **size,
            "method": "AutoLabelClassifier",
            "metric": metric,
            "value": value,
            "seconds": seconds,
            "chosen": "; ".join(families),
        }


def main() -> None:
    parser = described(__file__, __doc__)
    parser.add_argument("--sets", nargs="+", choices=SETS, default=[*SETS])
    parser.add_argument("--metrics", nargs="+", choices=METRICS, default=[*METRICS])
    parser.add_argument("--budget", type=float, default=60)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", ConvergenceWarning)
    arguments.output.mkdir(parents=True, exist_ok=True)
    kept = arguments.output / "table.csv"
    rows: list[dict[str, Any]] = []
    if kept.exists():
        with kept.open(encoding="utf-8", newline="") as file:
            rows = [*csv.DictReader(file)]
    for name in arguments.sets:
        done = {(row["set"], row["method"], row["metric"]) for row in rows}
        for row in cells(name, tuple(arguments.metrics), arguments.budget, done):
            rows.append(told(row))
            write_csv(kept, rows)
    with table(arguments.output, arguments.name):
        write_csv(kept, rows)
    show(rows, "hundreds of labels")


if __name__ == "__main__":
    main()
