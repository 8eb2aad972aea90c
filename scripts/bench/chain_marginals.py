"""Marginals of classifier chains, labels growing: by the likely labellings, and by all of them.

200 instances of links by logistic regression and by extremely randomised trees. Milliseconds of CPU time of
``predict_proba``, and the largest difference.

    OMP_NUM_THREADS=1 python scripts/bench/chain_marginals.py [--repeats 3]
"""

from __future__ import annotations

import time
import warnings
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
from measuring import described, seconds, show, table, told, write_csv
from sklearn.ensemble import ExtraTreesClassifier
from sklearn.linear_model import LogisticRegression

from lmbm_torch.estimators import ProbabilisticClassifierChain
from lmbm_torch.inference.common.limits import LIMITS

LINKS = (LogisticRegression(), ExtraTreesClassifier(20, random_state=0))
LISTED = "lmbm_torch.inference.search.most_probable.LIMITS"


def main() -> None:
    parser = described(__file__, __doc__)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    rows = [told(measured(link, labels, arguments.repeats)) for link in LINKS for labels in (3, 5, 6, 8, 10)]
    with table(arguments.output, arguments.name) as folder:
        write_csv(folder / "table.csv", rows)
    show(rows, "Marginals of chains")


def measured(link: Any, labels: int, repeats: int) -> dict[str, Any]:
    """Return milliseconds of both ways, and their difference."""
    random = np.random.default_rng(0)
    X = random.normal(size=(400, 5))
    scores = X @ random.normal(size=(5, labels)) + random.normal(size=(400, labels))
    model = ProbabilisticClassifierChain(link).fit(X[:200], scores[:200] + 0.5 * scores[:200, :1] > 0)
    answers, taken = [], []
    for listed in (-1, labels):
        with patch(LISTED, replace(LIMITS, listed=listed)):
            answers.append(model.predict_proba(X[200:]))
            each = [seconds(lambda: model.predict_proba(X[200:]), time.process_time) for _ in range(repeats)]
        taken.append(1e3 * min(each))
    off = float(np.abs(answers[0] - answers[1]).max())
    name = type(link).__name__
    return {"links": name, "labels": labels, "likely_ms": taken[0], "all_ms": taken[1], "difference": off}


if __name__ == "__main__":
    main()
