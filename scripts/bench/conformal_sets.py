"""Conformal sets of whole labellings beside boxes of certain and possible labels, at a coverage of 0.9.

Random splits: a third of the rows to test, 30 % of the others to calibrate, and the rest to fit
`LMSBNClassifier` at its defaults. ``covered`` is the share of test rows whose labels are in the set, ``size``
the median number of labellings (an upper bound where the list is not complete), ``box`` the median number of
labellings between the certain and the possible labels, ``share`` the median of their quotients, ``complete``
the share of complete lists, ``ms`` the CPU milliseconds of a row. ``false_negatives`` and ``false_positives``
are the mean risks of `RiskControlledClassifier` at a level of 0.1. Means over the splits, with the standard
deviation of the coverage.

    LMBM_DATA=... OMP_NUM_THREADS=1 python scripts/bench/conformal_sets.py [--sets yeast scene] [--splits 20]
"""

from __future__ import annotations

import os
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from measuring import described, show, table, told, write_csv
from sklearn.model_selection import train_test_split

from lmbm_torch.data import read_npz
from lmbm_torch.estimators import (
    ConformalClassifier,
    JointConformalClassifier,
    LMSBNClassifier,
    RiskControlledClassifier,
)
from lmbm_torch.estimators.wrappers.conformal import RISKS

# Rows and labels of a set, None for all.
SETS = {
    "yeast": ("yeast", None, None),
    "scene": ("scene", None, None),
    "langlog": ("langlog", None, None),
    "mediamill10": ("mediamill_subset", 3000, 10),
    "mediamill": ("mediamill_subset", 3000, None),
    "rcv1_subset1": ("rcv1_subset1", 3000, None),
}
MEANS = ("covered", "box_covered", "size", "box", "share", "complete", "ms", *RISKS)


def main() -> None:
    parser = described(__file__, __doc__)
    parser.add_argument("--sets", nargs="*", choices=SETS, default=[*SETS])
    parser.add_argument("--splits", type=int, default=20)
    parser.add_argument("--labellings", type=int, default=1000)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    rows = []
    for name in arguments.sets:
        X, Y = loaded(*SETS[name])
        # Compiles, and warms up.
        measured(X[:300], Y[:300], 0, 10)
        found = [measured(X, Y, split, arguments.labellings) for split in range(arguments.splits)]
        row: dict[str, Any] = {"set": name, "rows": len(Y), "labels": Y.shape[1], "splits": len(found)}
        row |= {each: float(np.mean([cell[each] for cell in found])) for each in MEANS}
        row["covered_sd"] = float(np.std([cell["covered"] for cell in found]))
        rows.append(told(row))
    with table(arguments.output, arguments.name) as folder:
        write_csv(folder / "table.csv", rows)
    show(rows, "Conformal sets")


def loaded(name: str, rows: int | None, labels: int | None) -> tuple[Any, np.ndarray]:
    """Return features and labels of the first rows and labels of a set."""
    data = read_npz(Path(os.environ["LMBM_DATA"]) / name / f"{name}.npz")
    return data.features[:rows].astype(np.float64), data.labels[:rows, :labels].astype(int)


def measured(X: Any, Y: np.ndarray, split: int, max_labellings: int) -> dict[str, float]:
    """Return the measures of one split."""
    train, test = train_test_split(np.arange(len(Y)), test_size=1 / 3, random_state=split)
    settings: dict[str, Any] = {"calibration_size": 0.3, "random_state": split}
    joint = JointConformalClassifier(LMSBNClassifier(), max_labellings=max_labellings, **settings)
    joint.fit(X[train], Y[train])
    began = time.process_time()
    found = joint.predict_labellings(X[test])
    milliseconds = (time.process_time() - began) / len(test) * 1e3
    box = ConformalClassifier(LMSBNClassifier(), **settings).fit(X[train], Y[train])
    certain, possible = box.predict_set(X[test])
    size = np.array([each.most for each in found])
    # In float64, powers of two to 2^1023 are exact.
    between = 2.0 ** (possible & ~certain).sum(1)
    risks = {}
    for risk in RISKS:
        model = RiskControlledClassifier(LMSBNClassifier(), risk=risk, level=0.1, **settings)
        counted = Y[test] == (1 if risk == "false_negatives" else 0)
        wrong = counted & (model.fit(X[train], Y[train]).predict(X[test]) != Y[test])
        risks[risk] = float((wrong.sum(1) / np.maximum(counted.sum(1), 1)).mean())
    return risks | {
        "covered": float((joint.estimator_.log_prob(X[test], Y[test]) >= joint.threshold_).mean()),
        "box_covered": float(((certain <= Y[test]) & (Y[test] <= possible)).all(1).mean()),
        "size": float(np.median(size)),
        "box": float(np.median(between)),
        "share": float(np.median(size / between)),
        "complete": float(np.mean([each.is_complete for each in found])),
        "ms": milliseconds,
    }


if __name__ == "__main__":
    main()
