"""Networks of up to a thousand labels beside independent linear SVMs at the same C.

The network is the default one but for ``--node-limit`` and the margin that it is decoded with, which has
the best sample F1 on a fifth of the training rows that a network never saw (``choice``, seconds of that).
This one learns from at most 4,000 of the others, has as many parents as the network, and ends at a gap of
0.005: answers of one of all rows or of a closer one rank the margins alike. With ``f1_`` the network has
calibrated probabilities, and is decoded for their expected F1.
liblinear's SVMs (hinge loss, at most 1,000 passes) are trained on the same scaled features. Seconds of
CPU time, of training, of decoding the test part, and (ms) the median of single rows; the share of rows
whose labels are proven to have the least loss; the peak memory of the process until the network has decoded.

    LMBM_DATA=… OMP_NUM_THREADS=1 python scripts/bench/many_labels.py [--sets delicious …] [--node-limit N]
"""

from __future__ import annotations

import resource
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import numpy as np
from measuring import described, seconds, show, table, write_csv
from scipy import sparse
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import accuracy_score, f1_score
from sklearn.model_selection import train_test_split
from sklearn.multiclass import OneVsRestClassifier
from sklearn.svm import LinearSVC

from lmbm_torch.data import load
from lmbm_torch.data.formats.npz import read_npz
from lmbm_torch.data.named import NAMED_SETS, data_folder
from lmbm_torch.estimators import LMSBNClassifier
from lmbm_torch.fitting.recipe import scaled
from lmbm_torch.inference.search import branch_and_bound

SETS = ("delicious", "tmc2007_500", "rcv1_subset1", "mediamill_subset")
ROWS_FOR_LATENCY = 100
MARGINS = (1.0, 0.5, 0.25)
# Relative gap and most rows of the network that the margin of decoding is chosen by.
CHOICE_TOL = 5e-3
CHOICE_ROWS = 4000
# F1 of rows without labels, true or predicted.
EMPTY: dict[str, Any] = {"zero_division": 0}


def main() -> None:
    parser = described(__file__, __doc__)
    parser.add_argument("--sets", nargs="+", default=SETS, choices=SETS)
    parser.add_argument("--node-limit", type=int, default=30_000)
    arguments = parser.parse_args()
    rows = []
    for name in arguments.sets:
        # A process of its own, whose peak memory is the network's.
        with ProcessPoolExecutor(1, get_context("spawn")) as process:
            rows.append(process.submit(network_and_machines, name, arguments.node_limit).result())
        show(rows[-1:])
    with table(arguments.output, arguments.name):
        write_csv(arguments.output / "table.csv", rows)
    show(rows, "Networks of many labels and independent SVMs")


def network_and_machines(name: str, node_limit: int) -> dict[str, Any]:
    """Return one row of the table."""
    warnings.simplefilter("ignore", ConvergenceWarning)
    # Of labels that no instance has.
    warnings.filterwarnings("ignore", "Label not")
    X, Y, test_X, test_Y = parts(name)
    network = LMSBNClassifier(node_limit=node_limit, random_state=0)
    # Compiles, and warms up.
    network.fit(X[:200], Y[:200]).decode(test_X[:20])
    row: dict[str, Any] = {"set": name, "instances": X.shape[0], "labels": Y.shape[1]}
    margins: list[float] = []
    fit = seconds(lambda: network.fit(X, Y), time.process_time)
    row["choice"] = seconds(lambda: margins.append(best_margin(network, X, Y)), time.process_time)
    network.set_params(decoding_margin=margins[0])
    row |= {"fit": fit, "margin": margins[0], "gap": network.duality_gap_}
    predictor = network.compile_predictor()
    dense = test_X.toarray() if sparse.issparse(test_X) else test_X
    found: list[Any] = []
    row["decode"] = seconds(lambda: found.append(predictor.decode(dense)), time.process_time)
    row["proven"] = float(found[0].exact.mean())
    row["one_row_ms"] = 1e3 * latency(predictor, dense)
    row["peak_MiB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    units: Any = network.feature_shift_, network.feature_scale_
    scaled_X, scaled_test = (scaled(part, *units) for part in (X, test_X))
    machines = OneVsRestClassifier(LinearSVC(C=network.C_, loss="hinge", max_iter=1000))
    row["svm_fit"] = seconds(lambda: machines.fit(scaled_X, Y), time.process_time)
    calibrated = LMSBNClassifier(decoder="f1", calibrate="labels", random_state=0)
    row["f1_fit"] = seconds(lambda: calibrated.fit(X, Y), time.process_time)
    row["f1_decode"] = seconds(lambda: found.append(calibrated.predict(test_X)), time.process_time)
    predicted = {"": found[0].labels, "f1_": found[1], "svm_": machines.predict(scaled_test)}
    for prefix, labels in predicted.items():
        row[f"{prefix}exact_match"] = accuracy_score(test_Y, labels)
        row[f"{prefix}sample_f1"] = float(f1_score(test_Y, labels, average="samples", **EMPTY))
    return row


def best_margin(network: LMSBNClassifier, X: Any, Y: np.ndarray) -> float:
    """Return the decoding margin of a fitted network with the best sample F1 on held-out rows."""
    rows, held_out = train_test_split(np.arange(X.shape[0]), test_size=0.2, random_state=0)
    part: Any = clone(network)
    part.set_params(tol=CHOICE_TOL, max_parents=network.max_parents_)
    energy = part.fit(X[rows[:CHOICE_ROWS]], Y[rows[:CHOICE_ROWS]]).energy(X[held_out])

    def value(margin: float) -> float:
        found = branch_and_bound.decode_hinge(energy, margin, node_limit=network.node_limit)
        return float(f1_score(Y[held_out], found.labels.numpy(), average="samples", **EMPTY))

    return max(MARGINS, key=value)


def latency(predictor: Any, rows: np.ndarray) -> float:
    """Return the median seconds of one row alone."""
    alone = [row[None] for row in rows[:ROWS_FOR_LATENCY]]
    return float(
        np.median([seconds(lambda row=row: predictor.decode(row), time.process_time) for row in alone])
    )


def parts(name: str) -> tuple[Any, np.ndarray, Any, np.ndarray]:
    """Return features and labels of both parts; sets without a test part give every third row to the test."""
    data = load(name) if name in NAMED_SETS else read_npz(data_folder() / name / f"{name}.npz")
    train, test = data.train, data.test
    if not len(test):
        every = np.arange(data.num_instances)
        train, test = every[every % 3 > 0], every[every % 3 == 0]
    features: Any = data.features.astype(np.float64)
    return features[train], data.labels[train], features[test], data.labels[test]


if __name__ == "__main__":
    main()
