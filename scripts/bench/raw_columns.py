"""Training on columns as they are found, at a penalty of one's own: the time as their ranges grow apart.

2,000 instances of 30 columns whose ranges differ by 0 to 6 orders of magnitude, 10 labels, C = 1. Seconds of
CPU time and the relative gap reached: of a network and of a machine at their defaults but for C; of the
network with C="scale", the default, which measures columns in units of their own; of liblinear's SVMs on
the network's own problems (features and labels before, hinge loss, at most 1,000 passes, its default), whose
gap is that of its objective to the network's dual value.

    OMP_NUM_THREADS=1 python scripts/bench/raw_columns.py [--rows 2000] [--columns 30]
"""

from __future__ import annotations

import time
import warnings
from typing import Any

import numpy as np
from measuring import described, seconds, show, table, told, write_csv
from sklearn.exceptions import ConvergenceWarning
from sklearn.svm import LinearSVC

from lmbm_torch.estimators import LMBMClassifier, LMSBNClassifier

LABELS = 10
ORDERS = (0, 2, 4, 6)


def main() -> None:
    parser = described(__file__, __doc__)
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--columns", type=int, default=30)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", ConvergenceWarning)
    # Compiles, and warms up.
    measured(*raw_table(100, 4, 0))
    rows = [
        told({"orders": orders} | measured(*raw_table(arguments.rows, arguments.columns, orders)))
        for orders in ORDERS
    ]
    with table(arguments.output, arguments.name):
        write_csv(arguments.output / "table.csv", rows)
    show(rows, "Raw columns")


def raw_table(instances: int, columns: int, orders: int) -> tuple[np.ndarray, np.ndarray]:
    """Return columns whose ranges differ by so many orders, and labels that depend on all of them alike."""
    random = np.random.default_rng(0)
    plain = random.normal(size=(instances, columns))
    labels = plain @ random.normal(size=(columns, LABELS)) > 0
    return plain * 10.0 ** np.linspace(0, orders, columns), labels.astype(int)


def measured(X: np.ndarray, Y: np.ndarray) -> dict[str, Any]:
    """Return seconds and gaps of each method."""
    row: dict[str, Any] = {}
    models: dict[str, Any] = {
        "network": LMSBNClassifier(C=1.0, ordering="index"),
        "machine": LMBMClassifier(C=1.0, coupling_penalty=10.0),
        "scaled_network": LMSBNClassifier(ordering="index"),
    }
    for name, model in models.items():
        row[f"{name}_s"] = seconds(lambda model=model: model.fit(X, Y), time.process_time)
        row[f"{name}_gap"] = model.duality_gap_
    machines = [LinearSVC(C=1.0, loss="hinge") for _ in range(LABELS)]
    inputs = [np.hstack([X, 2.0 * Y[:, :label] - 1]) for label in range(LABELS)]

    def fit_all() -> None:
        for machine, own, labels in zip(machines, inputs, Y.T, strict=True):
            machine.fit(own, labels)

    row["liblinear_s"] = seconds(fit_all, time.process_time)
    reached = sum(objective(*each) for each in zip(machines, inputs, Y.T, strict=True))
    network = models["network"]
    row["liblinear_gap"] = 1 - network.objective_ * (1 - network.duality_gap_) / reached
    return row


def objective(machine: Any, X: np.ndarray, y: np.ndarray) -> float:
    """Return ½‖w‖² + Σ hinge, of the weights and the constant that were learned."""
    margins = (2 * y - 1) * (X @ machine.coef_[0] + machine.intercept_[0])
    square = float(np.square(machine.coef_).sum() + machine.intercept_[0] ** 2)
    return square / 2 + float(np.maximum(1 - margins, 0).sum())


if __name__ == "__main__":
    main()
