"""The time of one call: predictions of a single row, as a server asks for them, beside scikit-learn's.

Scene, 6 labels and 294 features, every estimator at its defaults. Microseconds of processor time of a call
with one row and with 100, at the median; then the wall clock of single-row calls, median and 99th percentile,
and calls a second, from one thread and from several at once. Python runs one thread at a time, and takes
turns every 5 ms: most calls of several threads do not wait at all, some for all other threads' turns.

    OMP_NUM_THREADS=1 python scripts/bench/serving.py [--calls 2000] [--threads 8]
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from measuring import described, seconds, show, table, write_csv
from sklearn.linear_model import LogisticRegression
from sklearn.multiclass import OneVsRestClassifier

from lmbm_torch.data import load
from lmbm_torch.estimators import LMBMClassifier, LMSBNClassifier, StructuralSVMClassifier

MANY = 100
REPEATS = 9


def processor(predict: Callable[[np.ndarray], Any], rows: np.ndarray, calls: int) -> float:
    """Microseconds of processor time of a call."""

    def several() -> None:
        for _ in range(calls):
            predict(rows)

    return 1e6 * statistics.median(seconds(several, time.process_time) for _ in range(REPEATS)) / calls


def waits(
    predict: Callable[[np.ndarray], Any], rows: np.ndarray, calls: int, threads: int
) -> tuple[float, float, float]:
    """Median and 99th percentile of what so many threads wait for a call, in microseconds; calls a second."""
    spent = [np.empty(calls) for _ in range(threads)]
    start = threading.Barrier(threads + 1)

    def call(own: np.ndarray) -> None:
        start.wait()
        for i in range(calls):
            begun = time.perf_counter()
            predict(rows[i % len(rows)][None])
            own[i] = time.perf_counter() - begun

    callers = [threading.Thread(target=call, args=(own,)) for own in spent]
    for caller in callers:
        caller.start()
    start.wait()
    begun = time.perf_counter()
    for caller in callers:
        caller.join()
    elapsed = time.perf_counter() - begun
    p50, p99 = np.percentile(np.concatenate(spent), [50, 99]) * 1e6
    return float(p50), float(p99), calls * threads / elapsed


def main() -> None:
    parser = described(__file__, __doc__)
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--threads", type=int, default=8)
    arguments = parser.parse_args()
    data = load("scene")
    X, Y = data.train_features.astype(np.float64), data.train_labels
    network = LMSBNClassifier().fit(X, Y)
    predictors: dict[str, Callable[[np.ndarray], Any]] = {
        "LMSBNClassifier": network.predict,
        "its compiled predictor": network.compile_predictor().predict,
        "LMBMClassifier": LMBMClassifier().fit(X, Y).predict,
        "StructuralSVMClassifier": StructuralSVMClassifier().fit(X, Y).predict,
        "one LogisticRegression": LogisticRegression(max_iter=1000).fit(X, Y[:, 0]).predict,
        "OneVsRest, six of them": OneVsRestClassifier(LogisticRegression(max_iter=1000)).fit(X, Y).predict,
    }
    few = max(1, arguments.calls // (10 * REPEATS))
    rows, several = [], arguments.threads
    for name, predict in predictors.items():
        predict(X[:1])
        of_many = processor(predict, X[:MANY], few)
        row: dict[str, Any] = {
            "predictor": name,
            "processor_1_row": processor(predict, X[:1], few),
            f"processor_{MANY}_rows": of_many,
        }
        for threads in (1, several):
            p50, p99, calls = waits(predict, X, max(1, arguments.calls // threads), threads)
            row |= {f"p50_{threads}": p50, f"p99_{threads}": p99, f"a_second_{threads}": calls}
        rows.append(row)
    with table(arguments.output, arguments.name):
        write_csv(arguments.output / "table.csv", rows)
    show(rows, f"Microseconds of a call from 1 or {several} threads, and calls a second")


if __name__ == "__main__":
    main()
