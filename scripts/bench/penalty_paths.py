"""C chosen along a path, each solution the start of the next, beside a grid search over the same folds.

Three folds and six values of C from 1e-3 to 100, on rows of unit length, at the default tolerance. Seconds of
CPU time of the cross-validation and the last fit, and what each has chosen.
The grid search seeks a network's ordering for every C, the path once a fold; ``index`` leaves that out.

    OMP_NUM_THREADS=1 python scripts/bench/penalty_paths.py [--instances 800]
"""

from __future__ import annotations

import time
import warnings
from typing import Any

import numpy as np
from measuring import described, seconds, show, table, write_csv
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import GridSearchCV
from sklearn.preprocessing import normalize

from lmbm_torch.data import load
from lmbm_torch.estimators import (
    LMBMClassifier,
    LMBMClassifierCV,
    LMSBNClassifier,
    LMSBNClassifierCV,
    StructuralSVMClassifier,
    StructuralSVMClassifierCV,
)
from lmbm_torch.estimators.automatic.search import stratified_folds

KINDS: dict[str, tuple[type, Any]] = {
    "network": (LMSBNClassifierCV, LMSBNClassifier(random_state=0)),
    "network, index": (LMSBNClassifierCV, LMSBNClassifier(ordering="index", random_state=0)),
    "machine": (LMBMClassifierCV, LMBMClassifier(coupling_penalty=10.0, random_state=0)),
    "structural SVM": (StructuralSVMClassifierCV, StructuralSVMClassifier(random_state=0)),
}
FOLDS = 3


def main() -> None:
    parser = described(__file__, __doc__)
    parser.add_argument("--instances", type=int, default=800)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", ConvergenceWarning)
    rows = []
    for name in ("scene", "yeast"):
        data = load(name)
        X = normalize(data.train_features[: arguments.instances])
        Y = data.train_labels[: arguments.instances]
        for title, (kind, base) in KINDS.items():
            path = kind(base, cv=FOLDS, random_state=0)
            # Compiles, and warms up.
            kind(base, Cs=[1.0], cv=2, random_state=0).fit(X[:50], Y[:50])
            own = seconds(lambda path=path, X=X, Y=Y: path.fit(X, Y), time.process_time)
            seed = int(np.random.RandomState(0).randint(2**31))
            grid = GridSearchCV(base, {"C": path.Cs_}, cv=stratified_folds(Y, FOLDS, seed))
            theirs = seconds(lambda grid=grid, X=X, Y=Y: grid.fit(X, Y), time.process_time)
            rows.append(
                {
                    "set": name,
                    "model": title,
                    "path": own,
                    "grid": theirs,
                    "ratio": theirs / own,
                    "C_path": path.C_,
                    "C_grid": grid.best_params_["C"],
                    "score_path": float(path.scores_.mean(0).max()),
                    "score_grid": float(grid.best_score_),
                }
            )
            show(rows[-1:])
    with table(arguments.output, arguments.name):
        write_csv(arguments.output / "table.csv", rows)
    show(rows, "CPU seconds of a path over C and of a grid search")


if __name__ == "__main__":
    main()
