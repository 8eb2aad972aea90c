"""Thresholds tuned for exact match, labels growing: by few decodings, and by one at each threshold.

1,000 documents of 30 words by Zipf's law, hashed to 2^16 columns, and labels by what the words are multiples
of; three folds. CPU seconds of all trainings and trials, beside trials that decode everything
at each of the 39 thresholds, and scikit-learn's tuning of logistic regressions, which knows no dependence.

    OMP_NUM_THREADS=1 python scripts/bench/threshold_trials.py [--documents 1000]
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from hashed_words import drawn, hashed, multiples
from measuring import described, seconds, show, table, told, write_csv
from scipy import sparse
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import TunedThresholdClassifierCV
from sklearn.multioutput import MultiOutputClassifier
from torch import Tensor

from lmbm_torch.energies import DirectedEnergy
from lmbm_torch.estimators import LMSBNClassifier, ThresholdTunedClassifier
from lmbm_torch.inference.common.results import Decoding

NUM_LABELS = (5, 10, 20, 50)
WORDS, COLUMNS, FOLDS = 30, 2**16, 3
TRIALS = "lmbm_torch.estimators.wrappers.threshold_tuning.decode_thresholds"


def main() -> None:
    parser = described(__file__, __doc__)
    parser.add_argument("--documents", type=int, default=1000)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    words = drawn(np.random.default_rng(0), arguments.documents, WORDS)
    X = hashed(words, COLUMNS)
    # They grow rarer.
    y = multiples(words, list(0.3 / (1 + np.arange(max(NUM_LABELS)) / 10)))
    # Compiles, and warms up.
    tuned().fit(X[:60], y[:60, :3])
    rows = []
    for labels in NUM_LABELS:
        rows.append(told({"documents": len(y), "labels": labels} | measured(X, y[:, :labels])))
    with table(arguments.output, arguments.name) as folder:
        write_csv(folder / "table.csv", rows)
    show(rows, "Trials of thresholds")


def tuned() -> ThresholdTunedClassifier:
    return ThresholdTunedClassifier(LMSBNClassifier(random_state=0), cv=FOLDS)


def measured(X: sparse.csr_array, y: np.ndarray) -> dict[str, Any]:
    """Return seconds of each, and the measure reached."""
    model, others = tuned(), tuned()
    own = seconds(lambda: model.fit(X, y), time.process_time)
    with patch(TRIALS, one_by_one):
        each = seconds(lambda: others.fit(X, y), time.process_time)
    peer = MultiOutputClassifier(TunedThresholdClassifierCV(LogisticRegression(), cv=FOLDS))
    return {
        "tuned_s": own,
        "each_threshold_s": each,
        "scikit_learn_s": seconds(lambda: peer.fit(X, y), time.process_time),
        "cross_validated": model.cross_validated_,
        "each_cross_validated": others.cross_validated_,
    }


def one_by_one(
    decode: Callable[[DirectedEnergy], Decoding],
    energy: DirectedEnergy,
    label: int,
    thresholds: Tensor,
    margin: float,
) -> Tensor:
    """Return all examples at all thresholds, together."""
    shifts = torch.zeros(len(thresholds), 1, energy.unary.shape[1], dtype=energy.unary.dtype)
    shifts[:, 0, label] = thresholds
    shifted = energy.unary - shifts
    return decode(replace(energy, unary=shifted.flatten(0, 1))).labels.reshape(shifted.shape)


if __name__ == "__main__":
    main()
