"""Structural SVMs of some forty labels at their defaults beside large-margin Boltzmann machines.

The training part is the first 333 rows with the 45 labels that are most frequent there, the test part the
next rows of the first thousand. Seconds of CPU time of ``fit``, the relative duality gap, the number of
passes, exact match and sample F1 of the test part.

    LMBM_DATA=… OMP_NUM_THREADS=1 python scripts/bench/structural_labels.py
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
from measuring import described, seconds, show, table, told, write_csv
from sklearn.metrics import f1_score

from lmbm_torch.data.formats.npz import read_npz
from lmbm_torch.data.named import data_folder
from lmbm_torch.estimators import LMBMClassifier, StructuralSVMClassifier

ROWS, LABELS = (333, 1000), 45
SETS = ("langlog", "delicious", "genbase", "mediamill_subset")


def main() -> None:
    arguments = described(__file__, __doc__).parse_args()
    warnings.simplefilter("ignore")
    with table(arguments.output, arguments.name):
        rows = [told(row) for name in SETS for row in measured(name)]
        write_csv(arguments.output / "table.csv", rows)
    show(rows, "Structural SVMs of some forty labels")


def measured(name: str) -> Iterator[dict[str, Any]]:
    """Yield a row for each class."""
    train, last = ROWS
    found = read_npz(data_folder() / name / f"{name}.npz")
    X, Y = found.features[:last], found.labels[:last].astype(int)
    Y = Y[:, np.argsort(-Y[:train].sum(0), kind="stable")[:LABELS]]
    for kind in (LMBMClassifier, StructuralSVMClassifier):
        model: Any = kind(random_state=0)
        fit_seconds = seconds(lambda model=model: model.fit(X[:train], Y[:train]), time.process_time)
        answers = model.predict(X[train:])
        yield {
            "set": name,
            "labels": Y.shape[1],
            "class": kind.__name__,
            "fit": fit_seconds,
            "gap": model.duality_gap_,
            "passes": model.n_iter_,
            "exact_match": (answers == Y[train:]).all(1).mean(),
            "sample_f1": f1_score(Y[train:], answers, average="samples", zero_division=1),
        }


if __name__ == "__main__":
    main()
