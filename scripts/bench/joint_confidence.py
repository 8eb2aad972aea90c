"""Calibration of the probabilities of whole label vectors and of single labels.

LMSBN of C = 1 and of C = 10, LMBM and structural SVMs of C = 1, on standardised rows of unit length (sparse
ones of unit length alone), on sets with 300 test rows or more, in resampled splits with a third to test; of
tmc2007_500 2,000 rows to train and 1,000 to test, of mediamill_subset the first ten labels. The confidence is
the mean probability of what is predicted, beside the share that is right; the error of labels is the expected
calibration error in ten bins, the log loss that of whole label vectors. CPU seconds of a training.

    python scripts/bench/joint_confidence.py [--models LMSBN LMBM …] [--sets yeast scene …] [--splits 2]
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from measuring import described, show, table, told, write_csv
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Normalizer, StandardScaler

from lmbm_torch.compare.trials import part
from lmbm_torch.data import MultilabelData
from lmbm_torch.estimators import LMBMClassifier, LMSBNClassifier, StructuralSVMClassifier
from lmbm_torch.prediction.findings import Calibration
from reproduce.any_table import load, with_split

SETS = ("water_quality", "scene", "yeast", "mediamill_subset", "tmc2007_500")
MODELS: dict[str, tuple[Any, tuple[float, ...]]] = {
    "LMSBN": (LMSBNClassifier, (1.0, 10.0)),
    "LMBM": (LMBMClassifier, (1.0,)),
    "structural SVM": (StructuralSVMClassifier, (1.0,)),
}


def trials(data: MultilabelData, name: str) -> Iterator[dict[str, object]]:
    """Yield a row for each C of a model and each way to calibrate."""
    (X, Y), (tests, truth) = part(data, data.train), part(data, data.test)
    scaling = make_pipeline(*([] if hasattr(X, "tocsr") else [StandardScaler()]), Normalizer()).fit(X)
    X, tests = scaling.transform(X), scaling.transform(tests)
    classifier, penalties = MODELS[name]
    for C in penalties:
        for calibrate in ("labels", True):
            started = time.process_time()
            model = classifier(C, calibrate=calibrate, random_state=0).fit(X, Y)
            spent = time.process_time() - started
            answer = model.predict(tests)
            confidence = np.exp(model.log_prob(tests, answer)).mean()
            right = (answer == truth).all(1).mean()
            marginals = (torch.as_tensor(each) for each in (model.predict_proba(tests), truth))
            numbers = {
                "confidence": confidence,
                "right": right,
                "apart": confidence - right,
                "log loss": -model.log_prob(tests, truth).mean(),
                "error of labels": Calibration.of(*marginals).error,
                "s": spent,
            }
            rounded = {key: round(float(value), 4) for key, value in numbers.items()}
            yield {
                "model": name,
                "set": data.name,
                "C": C,
                "calibrate": calibrate,
                "rows": len(truth),
                **rounded,
            }


def main() -> None:
    parser = described(__file__, __doc__)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--sets", nargs="+", default=SETS)
    parser.add_argument("--splits", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with table(arguments.output, arguments.name):
        rows = [
            told({"split": split, **row})
            for model in arguments.models
            for name in arguments.sets
            for split in range(arguments.splits)
            for row in trials(with_split(load(name, os.environ["LMBM_DATA"]), split), model)
        ]
        write_csv(arguments.output / "table.csv", rows)
    show(rows, "Joint confidence beside the share of right answers")


if __name__ == "__main__":
    main()
