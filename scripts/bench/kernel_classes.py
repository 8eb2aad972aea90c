"""Classes and chains with an RBF kernel beside what a user would take, at growing sizes.

``KernelLogisticRegression`` beside scikit-learn's ``SVC(probability=True)``, logistic regression on 300
Nyström features, and, of 500 instances at most, a Gaussian process; ``MultiClassSVM`` beside ``SVC``, which
trains a classifier for each pair of classes. For ``ChainSVM`` there is no peer: beside it stands ``SVC`` on
the letters by themselves, which sees no words. The letters of handwritten words in rows of length 1, as many
other ones to test; one C and one width for all, so that held-out quality says what the seconds bought.
Seconds are of the processor, one thread, ours and the peers' in turn.

    python scripts/bench/kernel_classes.py [--sizes 250 500 1000 2000] [--repeats 1]
"""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from measuring import described, seconds, show, table, write_csv
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.gaussian_process.kernels import RBF
from sklearn.kernel_approximation import Nystroem
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.pipeline import make_pipeline
from sklearn.svm import SVC
from threadpoolctl import threadpool_limits

from lmbm_torch.data.named import data_folder, load_ocr_letters
from lmbm_torch.data.sequences.records import Sequences
from lmbm_torch.estimators import ChainSVM, KernelLogisticRegression, MultiClassSVM
from lmbm_torch.estimators.chains.baselines import IndependentPositions
from reproduce.m3n_2003 import unit_length

C, GAMMA = 3.0, 2.0
GAUSSIAN_PROCESS = 500
processor_seconds = partial(seconds, clock=time.process_time)
RBF_KERNEL: dict[str, Any] = {"kernel": "rbf", "gamma": GAMMA}
Peer = tuple[str, Callable[[], Any]]


def probabilistic(size: int) -> Iterator[Peer]:
    settings: dict[str, Any] = {"probability": True, "cache_size": 512, "random_state": 0}
    yield "SVC, probability", lambda: SVC(C=C, **settings, **RBF_KERNEL)
    features = partial(Nystroem, gamma=GAMMA, n_components=300, random_state=0)
    yield "Nyström, logistic", lambda: make_pipeline(features(), LogisticRegression(C=C, max_iter=1000))
    if size <= GAUSSIAN_PROCESS:
        length = float(1 / np.sqrt(2 * GAMMA))
        fixed: dict[str, Any] = {"optimizer": None}
        yield "Gaussian process", lambda: GaussianProcessClassifier(C * RBF(length), **fixed)


def pairwise() -> SVC:
    return SVC(C=C, cache_size=512, **RBF_KERNEL)


def cases(size: int) -> Iterator[tuple[Callable[[], Any], list[Peer], bool]]:
    """Yield our estimator, its peers, and whether they take whole words."""
    yield partial(KernelLogisticRegression, C, random_state=0, **RBF_KERNEL), [*probabilistic(size)], False
    yield partial(MultiClassSVM, C, random_state=0, **RBF_KERNEL), [("SVC", pairwise)], False
    alone = (
        "SVC, letters alone",
        lambda: IndependentPositions(pairwise().set_params(decision_function_shape="ovr")),
    )
    yield partial(ChainSVM, C, random_state=0, **RBF_KERNEL), [alone], True


def words(size: int) -> tuple[Sequences, Sequences]:
    """Return words of at least ``size`` letters to train on, and as many others."""
    data = load_ocr_letters(data_folder())
    order = np.random.default_rng(0).permutation(data.num_sequences)
    ends = np.cumsum(np.diff(data.start)[order])
    first, second = np.searchsorted(ends, [size, 2 * size]) + 1
    train, test = data.select(order[:first]), data.select(order[first:second])
    return unit_length(train), unit_length(test)


def quality(model: Any, X: Any, y: Any) -> dict[str, Any]:
    found = {"accuracy": round(model.score(X, y), 4), "log_loss": None}
    if hasattr(model, "predict_proba") and not isinstance(X, list):
        # Letters that training has not seen have no probability.
        known = np.isin(y, model.classes_)
        found["log_loss"] = round(log_loss(y[known], model.predict_proba(X[known]), labels=model.classes_), 4)
    return found


def compare(size: int, repeats: int) -> Iterator[dict[str, Any]]:
    train, test = words(size)
    apart = [(np.concatenate(some.features), np.concatenate(some.labels)) for some in (train, test)]
    for ours, peers, whole in cases(size):
        (X, y), (unseen, truth) = (train, test) if whole else apart
        makers = [ours, *(make for _, make in peers)]
        times: list[list[float]] = [[] for _ in makers]
        fitted: list[Any] = [None] * len(makers)
        for _ in range(repeats):
            for k, make in enumerate(makers):
                fitted[k] = make()
                times[k].append(processor_seconds(partial(fitted[k].fit, X, y)))
        model, mine = fitted[0], quality(fitted[0], unseen, truth)
        for (name, _), peer, spent in zip(peers, fitted[1:], times[1:], strict=True):
            theirs = quality(peer, unseen, truth)
            yield {
                "estimator": type(model).__name__,
                "instances": sum(map(len, y)) if whole else len(y),
                "peer": name,
                "ours_s": round(statistics.median(times[0]), 3),
                "peer_s": round(statistics.median(spent), 3),
                "ratio": round(statistics.median(p / o for o, p in zip(times[0], spent, strict=True)), 2),
                "our_gap": f"{model.duality_gap_:.1e}",
                "our_accuracy": mine["accuracy"],
                "peer_accuracy": theirs["accuracy"],
                "our_log_loss": mine["log_loss"],
                "peer_log_loss": theirs["log_loss"],
                "repeats": repeats,
            }


def main() -> None:
    parser = described(__file__, __doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[250, 500, 1000, 2000])
    parser.add_argument("--repeats", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    # scikit-learn says that probabilities of SVC will go.
    warnings.filterwarnings("ignore", category=FutureWarning)
    rows = []
    with threadpool_limits(1), table(arguments.output, arguments.name) as folder:
        # First calls load compiled code.
        for _ in compare(min(arguments.sizes), 1):
            pass
        for size in arguments.sizes:
            for row in compare(size, arguments.repeats):
                rows.append(row)
                print(row, flush=True)
                write_csv(folder / "table.csv", rows)
    show(rows, "CPU seconds; ratio: the peer's over ours")


if __name__ == "__main__":
    main()
