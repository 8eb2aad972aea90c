"""Ten kernel networks whose random orders share halves, beside ten in orders that are drawn one by one.

Random splits into at most 1,500 training rows and 1,000 test rows, standardised features, RBF kernel; both
ensembles on the same split with the same first member, in turn. Means over the splits, of the shared orders
and of what they gain, with the standard error of that; seconds are of the processor.

    python scripts/bench/ensemble_orders.py [--sets flags yeast] [--splits 24]
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import numpy as np
import torch
from measuring import described, seconds, show, table, write_csv
from scipy import sparse
from sklearn.metrics import f1_score
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

from lmbm_torch.data import read_npz
from lmbm_torch.data.named import data_folder
from lmbm_torch.estimators import LMSBNClassifier, LMSBNEnsembleClassifier

SETS = ("flags", "foodtruck", "chd_49", "genbase", "water_quality", "scene", "yeast")
MOST_TRAINED, MOST_TESTED = 1500, 1000
processor_seconds = partial(seconds, clock=time.process_time)
# By average, what 0 / 0 counts as.
F1: dict[str, Any] = {"samples": 1, "macro": 0}


def measured(X: np.ndarray, Y: np.ndarray, train: np.ndarray, test: np.ndarray, C: float, seed: int) -> Any:
    """Return exact match, sample and macro F1, and seconds of training; a row each, shared orders first."""
    scaler = StandardScaler().fit(X[train])
    found = []
    for orders in ("halves", "random"):
        network = LMSBNClassifier(C, kernel="rbf")
        model = LMSBNEnsembleClassifier(network, orders=orders, random_state=seed)
        taken = processor_seconds(partial(model.fit, scaler.transform(X[train]), Y[train]))
        labels = model.predict(scaler.transform(X[test]))
        scores = [
            (labels == Y[test]).all(1).mean(),
            *(f1_score(Y[test], labels, average=each, zero_division=F1[each]) for each in F1),
        ]
        found.append([*scores, taken])
    return np.array(found)


def compare(name: str, C: float, splits: int) -> dict[str, Any]:
    """Return the row of one set and penalty."""
    data = read_npz(data_folder() / name / f"{name}.npz")
    X = np.asarray(data.features.toarray() if sparse.issparse(data.features) else data.features, float)
    found = []
    for seed in range(splits):
        order = np.random.default_rng(seed).permutation(len(X))
        stop = min(int(0.6 * len(X)), MOST_TRAINED)
        train, test = order[:stop], order[stop : stop + MOST_TESTED]
        found.append(measured(X, data.labels.astype(float), train, test, C, seed))
    shared, others = np.swapaxes(found, 0, 1)
    gained = shared - others
    row: dict[str, Any] = {"set": name, "C": C, "splits": splits}
    for place, measure in enumerate(("exact_match", "sample_f1", "macro_f1")):
        row[measure] = round(float(shared[:, place].mean()), 4)
        row[f"{measure}_gain"] = round(float(gained[:, place].mean()), 4)
        row[f"{measure}_error"] = round(float(gained[:, place].std() / np.sqrt(splits)), 4)
    row["time_ratio"] = round(float(np.median(others[:, -1] / shared[:, -1])), 2)
    return row


def main() -> None:
    parser = described(__file__, __doc__)
    parser.add_argument("--sets", nargs="+", default=SETS)
    parser.add_argument("--penalties", type=float, nargs="+", default=[1.0, 10.0])
    parser.add_argument("--splits", type=int, default=12)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    with threadpool_limits(1), table(arguments.output, arguments.name) as folder:
        for name in arguments.sets:
            for C in arguments.penalties:
                rows.append(compare(name, C, arguments.splits))
                print(rows[-1], flush=True)
                write_csv(folder / "table.csv", rows)
    show(rows, "orders that share halves, and what they gain over independent ones")


if __name__ == "__main__":
    main()
