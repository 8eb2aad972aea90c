"""Emotions in comments (goemotions): a joint head for each metric over logistic regressions of single labels.

Features are tf-idf of words with pairs of neighbours and of characters, by ``TextEncoder``. A logistic
regression for each label (scikit-learn's default penalty) learns from the published training part, and a head
for each metric, ``JointHead(metric, structure="cardinality")``, from the scores of the development part. The
structure and the features are those with the best exact match on the folds of the development part. All is
measured on the test part. Beside each head stands the best of its cheap rules on the same scores: one
threshold, a threshold for each label, the most probable label. CPU seconds are those of the encoding and of
the regressions, and of each head with its predictions.

    LMBM_DATA=… OMP_NUM_THREADS=1 python scripts/bench/goemotions.py [--encoders phrases sentence]
"""

from __future__ import annotations

import gzip
import time
from typing import Any

import numpy as np
from measuring import described, show, table, told, write_csv
from sklearn.linear_model import LogisticRegression

from lmbm_torch import JointHead
from lmbm_torch.data import TextEncoder
from lmbm_torch.data.named import data_folder
from lmbm_torch.estimators.joint import rules
from lmbm_torch.files import replacing

METRICS = ("exact_match", "f1", "macro_f1", "micro_f1")
PARTS = ("train", "dev", "test")


def main() -> None:
    parser = described(__file__, __doc__)
    parser.add_argument("--encoders", nargs="+", default=["phrases", "characters"])
    parser.add_argument("--penalty", type=float, default=1.0, help="C of the logistic regressions")
    parser.add_argument("--structure", default="cardinality", help="of the heads")
    parser.add_argument("--cache", help="folder of embeddings, by default the platform's")
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    labels, scores, first = scored(arguments)
    rows = [told(measured(metric, arguments.structure, labels, scores)) for metric in METRICS]
    total = first["base_s"] + sum(row["head_s"] for row in rows)
    rows = [row | first | {"total_s": total} for row in rows]
    with table(arguments.output, arguments.name):
        write_csv(arguments.output / "table.csv", rows)
    show(rows, "goemotions")


def scored(arguments: Any) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray], dict[str, Any]]:
    """Labels and log-odds of each part, and what they took; log-odds are kept in the folder."""
    texts, labels = {}, {}
    for part in PARTS:
        with gzip.open(
            data_folder() / "goemotions" / f"{part}.tsv.gz", "rt", encoding="utf-8", newline="\n"
        ) as file:
            lines = [line.split("\t") for line in file]
        texts[part] = [text for text, *_ in lines]
        labels[part] = np.array(
            [np.isin(np.arange(28), [*map(int, row[1].split(","))]) for row in lines]
        ).astype(int)
    path = arguments.output / "scores.npz"
    if not path.exists():
        began = time.process_time()
        encoder = TextEncoder(arguments.encoders, cache=arguments.cache)
        X = encoder.fit_transform(texts["train"])
        models = [
            LogisticRegression(C=arguments.penalty, solver="liblinear").fit(X, own)
            for own in labels["train"].T
        ]
        found = {}
        for part in PARTS[1:]:
            others = encoder.transform(texts[part])
            found[part] = np.column_stack([each.decision_function(others) for each in models])
        with replacing(path) as stream:
            np.savez(stream, **found, columns=X.shape[1], seconds=time.process_time() - began)
    with np.load(path) as file:
        first = {"columns": int(file["columns"]), "base_s": float(file["seconds"])}
        return labels, {part: file[part] for part in PARTS[1:]}, first


def measured(
    metric: str, structure: str, labels: dict[str, np.ndarray], scores: dict[str, np.ndarray]
) -> dict[str, Any]:
    """A row for a metric."""
    began = time.process_time()
    head = JointHead(metric, scores="logits", structure=structure, random_state=0).fit(
        scores["dev"], labels["dev"]
    )
    answers = head.predict(scores["test"])
    seconds = time.process_time() - began
    best = max(rules.RULES, key=head.cross_validated_.__getitem__)
    ones = {part: np.ones(len(labels[part])) for part in PARTS[1:]}
    thresholds = rules.learned(best, metric, scores["dev"], labels["dev"], ones["dev"])
    values = [
        rules.value(metric, each, labels["test"], ones["test"])
        for each in (answers, rules.predicted(thresholds, scores["test"]))
    ]
    return {
        "metric": metric,
        "joint_head": values[0],
        "best_rule": values[1],
        "rule": best,
        "answered_by": head.rule_ or head.structure_,
        "head_s": seconds,
    }


if __name__ == "__main__":
    main()
