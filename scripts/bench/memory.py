"""Peak memory of every estimator on a table of 10,000 instances, 1,000 features and 100 labels.

    OMP_NUM_THREADS=1 python scripts/bench/memory.py [NAME ...] [--steps fit predict] [--seconds 300]

Classifiers of classes get 100 classes, classifiers of sequences 1,000 sequences of 10 positions with 100
states, of graphs 1,000 paths of 10 nodes with 100 states, and the joint head 100 probabilities in place of
features. A row says the peak of a step beside what its process held before, the imports and the table, as
the kernel counts it. Memory depends on the shapes rather than on the number of iterations: solvers get few,
and what predicts for all instances has been fitted to 100 of them (``predict`` and, where there is one,
``predict_proba``, in one process). After ``--seconds`` a process is ended, and the peak so far is what the
row says. No estimator should take more than 2,048 MiB.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
import warnings
from collections.abc import Iterator
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from measuring import MIB, described, peak, reset_peak, resident, show, table, told, write_csv
from sklearn.ensemble import ExtraTreesClassifier
from sklearn.linear_model import LogisticRegression

from lmbm_torch import estimators

CONTEXT = multiprocessing.get_context("fork")
INSTANCES, FEATURES, LABELS, LENGTH = 10_000, 1_000, 100, 10
FEW = 100
STEPS = ("fit", "predict")
CLASSES = ("KernelLogisticRegression", "MultiClassSVM")
FUNCTIONS = ("cross_val_predict_sequences",)
CHAINS = ("ChainCRF", "ChainSVM", "HiddenMarkovClassifier", "MaximumEntropyMarkovClassifier")
# Estimators with settings that take other routes than the defaults.
SETTINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "ChainSVM, RBF kernel": ("ChainSVM", {"kernel": "rbf"}),
    "LMSBNClassifier, RBF kernel": ("LMSBNClassifier", {"kernel": "rbf"}),
    "LMSBNClassifier, 3 parents": ("LMSBNClassifier", {"max_parents": 3}),
    "MultiClassSVM, RBF kernel": ("MultiClassSVM", {"kernel": "rbf"}),
}


def names() -> list[str]:
    """The rows of the table: public estimators, and estimators with settings."""
    return [name for name in estimators.__all__ if name not in FUNCTIONS] + [*SETTINGS]


def unfitted(name: str, max_iter: int, seconds: float) -> Any:
    """An estimator with at most ``max_iter`` iterations, and the time that a search may take."""
    kind, settings = SETTINGS.get(name, (name, {}))
    few = LogisticRegression(max_iter=20)
    within: dict[str, Any] = {
        "ConformalClassifier": estimators.LMSBNClassifier(max_iter=max_iter),
        "JointConformalClassifier": estimators.LMSBNClassifier(max_iter=max_iter),
        "RiskControlledClassifier": estimators.LMSBNClassifier(max_iter=max_iter),
        "ConstrainedClassifier": estimators.LMBMClassifier(max_iter=max_iter),
        "LMBMClassifierCV": estimators.LMBMClassifier(max_iter=max_iter),
        "LMSBNClassifierCV": estimators.LMSBNClassifier(max_iter=max_iter),
        "LMSBNEnsembleClassifier": estimators.LMSBNClassifier(max_iter=max_iter),
        "StructuralSVMClassifierCV": estimators.StructuralSVMClassifier(max_iter=max_iter),
        "ThresholdTunedClassifier": estimators.LMSBNClassifier(max_iter=max_iter),
        "HierarchicalClassifier": ExtraTreesClassifier(10, random_state=0),
        "IndependentLabelsClassifier": few,
        "JointClassifier": few,
        "ProbabilisticClassifierChain": few,
    }
    model = getattr(estimators, kind)(*([within[kind]] if kind in within else ()), **settings)
    own = model.get_params(deep=False)
    chosen = {"max_iter": max_iter, "random_state": 0, "time_budget": seconds / 3}
    return model.set_params(**{key: value for key, value in chosen.items() if key in own})


def drawn(name: str) -> tuple[Any, Any]:
    """The features, and the labels that depend on features and on each other; a fifth of all are 1."""
    kind, _ = SETTINGS.get(name, (name, {}))
    random = np.random.default_rng(0)
    X = random.normal(size=(INSTANCES, FEATURES))
    scores = X @ random.normal(size=(FEATURES, LABELS)) / np.sqrt(FEATURES)
    scores += 0.5 * np.roll(scores, 1, axis=1) + 0.5 * random.normal(size=scores.shape)
    Y = (scores > 1).astype(np.int64)
    if kind == "JointHead":
        return 1 / (1 + np.exp(1 - scores)), Y
    if kind in CLASSES:
        return X, scores.argmax(1)
    if kind == "GraphClassifier":
        path = np.stack([np.arange(LENGTH - 1), np.arange(1, LENGTH)], 1)
        parts = range(LENGTH, INSTANCES, LENGTH)
        return [(each, path) for each in np.split(X, parts)], np.split(scores.argmax(1), parts)
    if kind in CHAINS:
        parts = range(LENGTH, INSTANCES, LENGTH)
        return np.split(X, parts), np.split(scores.argmax(1), parts)
    return X, Y


def measure(name: str, step: str, options: argparse.Namespace, sender: Connection) -> None:
    """Work here; send what is called and the memory before, then the time and the peak after it."""
    warnings.simplefilter("ignore")
    X, y = drawn(name)
    model = unfitted(name, options.max_iter, options.seconds)
    calls = {"fit": lambda: model.fit(X, y)}
    if step == "predict":
        few = FEW // (LENGTH if isinstance(X, list) else 1)
        model.fit(X[:few], y[:few])
        ways = (way for way in ("predict", "predict_proba") if hasattr(model, way))
        calls = {way: partial(getattr(model, way), X) for way in ways}
    for way, call in calls.items():
        sender.send((way, resident()))
        reset_peak()
        started = time.process_time()
        call()
        sender.send((time.process_time() - started, peak()))


def measured(name: str, step: str, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The rows of an estimator, by a process of its own, which has the imports of this one."""
    receiver, sender = CONTEXT.Pipe(duplex=False)
    child = CONTEXT.Process(target=measure, args=(name, step, options, sender))
    child.start()
    sender.close()
    until = time.monotonic() + options.seconds
    begun: tuple[str, int | None] = f"before {step}", None

    def row(spent: float | str, most: int, ended: str = "") -> dict[str, Any]:
        way, before = begun
        beside = "" if before is None else (most - before) / MIB
        found = {"estimator": name, "step": way, "peak_mib": beside, "cpu_seconds": spent}
        return found | {"ended": ended}

    try:
        while receiver.poll(max(0.0, until - time.monotonic())):
            first, second = receiver.recv()
            if isinstance(first, str):
                begun = first, second
            else:
                yield row(first, second)
    except EOFError:
        child.join()
        if child.exitcode:
            raise RuntimeError(f"{name}: expected a {step} without an error, see above") from None
        return
    yield row("", peak(child.pid or 0), "by time")
    child.kill()
    child.join()


def main() -> None:
    parser = described(__file__, __doc__)
    parser.add_argument("names", nargs="*", help="rows; all by default")
    parser.add_argument("--steps", nargs="+", choices=STEPS, default=STEPS)
    parser.add_argument("--seconds", type=float, default=300.0, help="most wall-clock time of a process")
    parser.add_argument("--max-iter", type=int, default=3)
    options = parser.parse_args()
    rows = [
        told(row)
        for name in options.names or names()
        for step in options.steps
        for row in measured(name, step, options)
    ]
    show(rows, "peak memory beside imports and table, MiB")
    with table(options.output, options.name) as folder:
        write_csv(folder / "table.csv", rows)


if __name__ == "__main__":
    main()
