"""Memory, time and accuracy of ``partial_fit`` on a stream of a million rows, beside a batch fit.

    OMP_NUM_THREADS=1 python scripts/bench/long_streams.py [--rows 1000000] [--batch 10000]

The stream has 20 features and 5 labels that depend on the features and on each other. A row has the memory of
the process beside that before the first call, the CPU time of the last call, the share of wrong labels among
20,000 other rows, and how far the model is from ``fit`` on all rows that the stream has had: the root mean
square of the difference of the fields divided by that of the fields, and how far the objective of ``fit`` is
above its minimum, as a share.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from measuring import MIB, described, resident, seconds, show, table, told, write_csv

from lmbm_torch.estimators import LMSBNClassifier

FEATURES, LABELS = 20, 5
HELD_OUT = 20_000
# After which of ten parts of the stream a model is compared: a batch fit of a million rows takes minutes.
TENTHS = (1, 2, 5, 10)
# C per row times the rows of the stream: enough for one pass to come near the minimum.
C_OF_STREAM = 1e4


def drawn(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows, and labels by one rule with noise; each label depends on the label before."""
    rule = np.random.default_rng(0).normal(size=(FEATURES, LABELS)) / np.sqrt(FEATURES)
    random = np.random.default_rng((1, seed))
    X = random.normal(size=(count, FEATURES))
    fields = X @ rule + 0.5 * random.normal(size=(count, LABELS))
    Y = np.empty((count, LABELS), np.int64)
    before = np.zeros(count)
    for label in range(LABELS):
        Y[:, label] = fields[:, label] + 0.5 * before > 0
        before = 2.0 * Y[:, label] - 1
    return X, Y


def fields(model: LMSBNClassifier, X: np.ndarray, Y: np.ndarray) -> np.ndarray:
    """The fields of all labels, given the true labels before."""
    return X @ model.coef_.T + model.intercept_ + (2.0 * Y - 1) @ model.parent_coef_.T


def objective(model: LMSBNClassifier, X: np.ndarray, Y: np.ndarray) -> float:
    """½‖w‖² + C Σ hinge by its definition."""
    weights = (model.coef_, model.intercept_, model.parent_coef_)
    margins = (2.0 * Y - 1) * fields(model, X, Y)
    return float(sum(np.square(w).sum() for w in weights) / 2 + model.C * np.maximum(1 - margins, 0).sum())


def parts(rows: int, batch: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The batches of the stream."""
    return (drawn(batch, 1 + number) for number in range(rows // batch))


def streamed(rows: int, batch: int, C: float) -> tuple[list[dict[str, Any]], list[LMSBNClassifier]]:
    """Memory and time, and the model, after each tenth of the stream; nothing else is in memory meanwhile."""
    settings: dict[str, Any] = {"C": C, "ordering": "index", "random_state": 0}
    LMSBNClassifier(**settings).partial_fit(*drawn(batch, 1), epoch_size=rows)
    model, found, models = LMSBNClassifier(**settings), [], []
    before = resident()
    for number, part in enumerate(parts(rows, batch), 1):
        spent = seconds(lambda part=part: model.partial_fit(*part, epoch_size=rows), time.process_time)
        if number * batch % (rows // 10) == 0:
            memory = (resident() - before) / MIB
            found.append({"rows": number * batch, "memory_mib": memory, "cpu_seconds_a_call": spent})
            models.append(copy.deepcopy(model))
    return found, models


def compared(model: LMSBNClassifier, rows: int, batch: int) -> dict[str, float]:
    """A model of a stream beside a fit of all rows that it has had."""
    own = tuple(np.concatenate(each) for each in zip(*parts(rows, batch), strict=True))
    whole = LMSBNClassifier(**model.get_params()).fit(*own)
    X, Y = drawn(HELD_OUT, 0)
    wanted = fields(whole, X, Y)
    difference = fields(model, X, Y) - wanted
    return {
        "wrong_labels_stream": float((model.predict(X) != Y).mean()),
        "wrong_labels_batch": float((whole.predict(X) != Y).mean()),
        "difference": float(np.sqrt(np.square(difference).mean() / np.square(wanted).mean())),
        "objective_excess": objective(model, *own) / objective(whole, *own) - 1,
    }


def main() -> None:
    parser = described(__file__, __doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--batch", type=int, default=10_000)
    options = parser.parse_args()
    found, models = streamed(options.rows, options.batch, C_OF_STREAM / options.rows)
    rows = [
        told(row | compared(model, row["rows"], options.batch))
        for row, model in zip(found, models, strict=True)
        if row["rows"] * 10 // options.rows in TENTHS
    ]
    show(rows, "A stream beside batch fits")
    with table(options.output, options.name) as folder:
        write_csv(folder / "table.csv", rows)


if __name__ == "__main__":
    main()
