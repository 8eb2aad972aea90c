"""Losses that weigh more and more, on columns that are well scaled: max-margin classifiers and their peer.

A class out of 4 by 10 columns, of 600 rows, and of 5 by 50, of 2,000; and 5 labels by 8 columns, of 300 rows.
CPU seconds and the relative gap reached, by C: of the multi-class and the structural SVM at
their defaults, and of liblinear's Crammer–Singer machine (at most 1,000 passes, its default), whose gap is
that of its objective to the dual value of ours.

    OMP_NUM_THREADS=1 python scripts/bench/large_penalties.py
"""

from __future__ import annotations

import time
import warnings
from typing import Any

import numpy as np
from measuring import described, seconds, show, table, told, write_csv
from sklearn.svm import LinearSVC

from lmbm_torch.estimators import MultiClassSVM, StructuralSVMClassifier

PENALTIES = (0.1, 1.0, 10.0, 100.0, 1e4, 1e6)
# Rows, columns, classes.
SIZES = ((600, 10, 4), (2000, 50, 5))


def main() -> None:
    arguments = described(__file__, __doc__).parse_args()
    warnings.simplefilter("ignore")
    # Compile, and warm up.
    classes(0.1, 100, 5, 3)
    labels(0.1)
    rows = []
    for C in PENALTIES:
        rows += [told(classes(C, *sizes)) for sizes in SIZES]
        rows.append(told(labels(C)))
    with table(arguments.output, arguments.name) as folder:
        write_csv(folder / "table.csv", rows)
    show(rows, "Large penalties")


def classes(C: float, rows: int, columns: int, count: int) -> dict[str, Any]:
    """Return the multi-class SVM, and liblinear's."""
    random = np.random.default_rng(0)
    weights, X = random.normal(size=(count, columns)), random.normal(size=(rows, columns))
    y = (X @ weights.T + np.sqrt(columns) * random.gumbel(size=(rows, count))).argmax(1)
    model = MultiClassSVM(C)
    took = seconds(lambda: model.fit(X, y), time.process_time)
    peer = LinearSVC(C=C, multi_class="crammer_singer")
    peer_took = seconds(lambda: peer.fit(X, y), time.process_time)
    certified = model.objective_ * (1 - model.duality_gap_)
    return {
        "model": f"{count} classes, {rows} x {columns}",
        "C": C,
        "seconds": took,
        "gap": model.duality_gap_,
        "liblinear_seconds": peer_took,
        "liblinear_gap": 1 - certified / objective(peer, C, X, y),
    }


def labels(C: float) -> dict[str, Any]:
    """Return the structural SVM."""
    random = np.random.default_rng(0)
    Y = (random.random((300, 5)) < 0.4).astype(int)
    X = random.normal(size=(300, 8))
    X[:, :5] += 1.5 * Y
    model = StructuralSVMClassifier(C)
    took = seconds(lambda: model.fit(X, Y), time.process_time)
    return {"model": "5 labels, 300 x 8", "C": C, "seconds": took, "gap": model.duality_gap_}


def objective(machine: LinearSVC, C: float, X: np.ndarray, y: np.ndarray) -> float:
    """Return ½‖w‖² + C Σ max_k [1{k ≠ y} + score_k − score_y], constants counted in ‖w‖²."""
    scores = X @ machine.coef_.T + machine.intercept_
    truth = scores[np.arange(len(y)), y][:, None]
    margins = scores - truth + (np.arange(scores.shape[1]) != y[:, None])
    square = np.square(machine.coef_).sum() + np.square(machine.intercept_).sum()
    return float(0.5 * square + C * margins.max(1).sum())


if __name__ == "__main__":
    main()
