"""The time of one call: predictions of a single row, as a server asks for them, beside scikit-learn's.

Scene, 6 labels and 294 features, every estimator at its defaults, and a network of 100 random labels.
CPU microseconds of a call with one row and with 100, at the median; then the wall clock of
single-row calls, median and 99th percentile, and calls a second:

* from one thread;
* from several that never pause. Python runs one thread at a time, and takes turns every 5 ms (``turns_5ms``):
  most calls do not wait at all, some for all other threads' turns. ``turns_100us`` is with
  ``sys.setswitchinterval(1e-4)``, which is for whoever owns the process to say;
* from several that serve calls which come in at random (Poisson), half as many as one thread can answer: a
  server's load. Waiting counts from when a call comes in.

``machine_load`` is the system's load average afterwards: of an idle machine's waits it is some 1 to 3.

    OMP_NUM_THREADS=1 python scripts/bench/serving.py [--calls 2000] [--threads 8]
"""

from __future__ import annotations

import itertools
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from measuring import described, seconds, show, table, told, write_csv
from sklearn.linear_model import LogisticRegression
from sklearn.multiclass import OneVsRestClassifier

from lmbm_torch.data import load
from lmbm_torch.estimators import LMBMClassifier, LMSBNClassifier, StructuralSVMClassifier
from lmbm_torch.estimators.networks.predictors import NetworkPredictor
from lmbm_torch.inference.search.branch_and_bound import HingeSearch

MANY = 100
REPEATS = 9


def processor(predict: Callable[[np.ndarray], Any], rows: np.ndarray, calls: int) -> float:
    """Return CPU microseconds of a call."""

    def several() -> None:
        for _ in range(calls):
            predict(rows)

    return 1e6 * statistics.median(seconds(several, time.process_time) for _ in range(REPEATS)) / calls


def waits(call: Callable[[int], float], calls: int, threads: int) -> tuple[float, float, float]:
    """Return the median and 99th percentile of waiting callers in microseconds, and the calls a second.

    Args:
        call: makes the call of this number, and returns when it began to wait.
    """
    spent, numbers, start = np.empty(calls), itertools.count(), threading.Barrier(threads + 1)

    def work() -> None:
        start.wait()
        while (number := next(numbers)) < calls:
            began = call(number)
            spent[number] = time.perf_counter() - began

    callers = [threading.Thread(target=work) for _ in range(threads)]
    for caller in callers:
        caller.start()
    start.wait()
    begun = time.perf_counter()
    for caller in callers:
        caller.join()
    elapsed = time.perf_counter() - begun
    p50, p99 = np.percentile(spent, [50, 99]) * 1e6
    return float(p50), float(p99), calls / elapsed


def unpaused(predict: Callable[[np.ndarray], Any], rows: np.ndarray) -> Callable[[int], float]:
    """Return calls one after the other."""

    def call(number: int) -> float:
        began = time.perf_counter()
        predict(rows[number % len(rows)][None])
        return began

    return call


def arriving(
    predict: Callable[[np.ndarray], Any], rows: np.ndarray, times: np.ndarray
) -> Callable[[int], float]:
    """Return calls that come in at ``times`` (calls,), in seconds from now on."""
    due = time.perf_counter() + 0.05 + times

    def call(number: int) -> float:
        pause = due[number] - time.perf_counter()
        if pause > 0:
            time.sleep(pause)
        predict(rows[number % len(rows)][None])
        return due[number]

    return call


def measured(
    predict: Callable[[np.ndarray], Any], rows: np.ndarray, calls: int, threads: int
) -> dict[str, Any]:
    """Return the columns of one predictor."""
    predict(rows[:1])
    few = max(1, calls // (10 * REPEATS))
    row: dict[str, Any] = {
        "processor_1_row": processor(predict, rows[:1], few),
        f"processor_{MANY}_rows": processor(predict, rows[:MANY], max(1, few // 10)),
    }
    usual = sys.getswitchinterval()
    found = {"alone": waits(unpaused(predict, rows), calls, 1)}
    for name, turn in (("turns_5ms", 5e-3), ("turns_100us", 1e-4)):
        sys.setswitchinterval(turn)
        found[name] = waits(unpaused(predict, rows), calls, threads)
    sys.setswitchinterval(usual)
    pauses = np.random.default_rng(0).exponential(2 / found["alone"][2], calls)
    found["half_load"] = waits(arriving(predict, rows, pauses.cumsum()), calls, threads)
    for name, (p50, p99, a_second) in found.items():
        row |= {f"{name}_p50": p50, f"{name}_p99": p99, f"{name}_a_second": a_second}
    return row | {"machine_load": os.getloadavg()[0]}


def many_labels() -> tuple[NetworkPredictor, np.ndarray]:
    """Return a network of 100 labels whose search takes far longer than Python does, and instances."""
    random, labels = np.random.default_rng(0), 100
    search = HingeSearch.of(
        np.tril(random.normal(scale=0.12, size=(labels, labels)), -1), np.arange(labels), node_limit=2000
    )
    weight = random.normal(size=(labels, 20)) / 5
    names = tuple(map(str, range(labels)))
    return NetworkPredictor(weight, np.zeros(labels), search, names), random.normal(size=(200, 20))


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
    calls, threads = arguments.calls, arguments.threads
    rows = [
        told({"predictor": name, "threads": threads, **measured(predict, X, calls, threads)})
        for name, predict in predictors.items()
    ]
    wide, instances = many_labels()
    for several in (2, threads):
        found = measured(wide.predict, instances, max(1, calls // 5), several)
        rows.append(told({"predictor": "compiled, 100 labels", "threads": several, **found}))
    with table(arguments.output, arguments.name):
        write_csv(arguments.output / "table.csv", rows)
    show(rows, "Microseconds of a call, and calls a second")


if __name__ == "__main__":
    main()
