"""Hashed words, their columns growing: chains and conditional RBMs beside scikit-learn one by one.

500 sequences of 3 to 29 positions, each of 15 words by Zipf's law that are hashed to 2^12, 2^16 and 2^19
columns, so that most columns are zero or equal to others; 20 classes by what the words add up to. Seconds of
CPU time to train at the defaults: of a CRF, an MEMM and a max-margin network, and of scikit-learn's
logistic regression, which sees a position alone. And 50,000 sequences of 1 to 8 dense positions, trained on
and predicted, where looking at what came would be most of the time. And 500 documents of 40 such words with 5
labels: a conditional RBM, and scikit-learn's logistic regression for each label.

    OMP_NUM_THREADS=1 python scripts/bench/rare_columns.py [--sequences 500]
"""

from __future__ import annotations

import time
import warnings
from typing import Any

import numpy as np
from hashed_words import drawn, hashed, multiples
from measuring import described, seconds, show, table, told, write_csv
from scipy import sparse
from sklearn.linear_model import LogisticRegression
from sklearn.multioutput import MultiOutputClassifier

from lmbm_torch.estimators import (
    ChainCRF,
    ChainSVM,
    ConditionalRBMClassifier,
    MaximumEntropyMarkovClassifier,
)

COLUMNS = (2**12, 2**16, 2**19)
WORDS, CLASSES = 15, 20
# Words of a document, and how many have each label.
DOCUMENT, SHARES = 40, (0.5,) * 5
Sequences = tuple[list[Any], list[np.ndarray]]


def main() -> None:
    parser = described(__file__, __doc__)
    parser.add_argument("--sequences", type=int, default=500)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    # Compiles, and warms up.
    measured(*sequences(20, 2**8))
    words = drawn(np.random.default_rng(0), arguments.sequences, DOCUMENT)
    labels = multiples(words, SHARES)
    labelled(hashed(words[:50], 2**8), labels[:50])
    rows = []
    for columns in COLUMNS:
        X, y = sequences(arguments.sequences, columns)
        rows.append(told({"sequences": len(X), "columns": columns} | measured(X, y)))
    X, y = short(100 * arguments.sequences)
    rows.append(told({"sequences": len(X), "columns": X[0].shape[1]} | measured(X, y)))
    of_documents = []
    for columns in COLUMNS:
        row = {"documents": len(words), "columns": columns}
        of_documents.append(told(row | labelled(hashed(words, columns), labels)))
    with table(arguments.output, arguments.name) as folder:
        write_csv(folder / "table.csv", rows + of_documents)
    show(rows, "Rare columns, short sequences")
    show(of_documents, "Documents of rare columns")


def sequences(count: int, columns: int) -> Sequences:
    """Return sequences of words in a hashed vocabulary, CSR."""
    random, X, y = np.random.default_rng(0), [], []
    for length in random.integers(3, 30, count):
        words = drawn(random, length, WORDS)
        X.append(hashed(words, columns))
        y.append((words.min(1) + random.integers(0, 3, length)) % CLASSES)
    return X, y


def labelled(X: sparse.csr_array, y: np.ndarray) -> dict[str, Any]:
    """Return seconds of each method."""
    models = {
        "crbm_s": ConditionalRBMClassifier(random_state=0),
        "scikit_learn_s": MultiOutputClassifier(LogisticRegression()),
    }
    return {name: seconds(lambda m=model: m.fit(X, y), time.process_time) for name, model in models.items()}


def short(count: int) -> Sequences:
    """Return sequences of 1 to 8 positions of 10 dense columns, 4 classes."""
    random = np.random.default_rng(0)
    weights = random.standard_normal((10, 4))
    X = [random.standard_normal((length, 10)) for length in random.integers(1, 9, count)]
    return X, [(rows @ weights + random.gumbel(size=(len(rows), 4))).argmax(1) for rows in X]


def measured(X: list[Any], y: list[np.ndarray]) -> dict[str, Any]:
    """Return seconds of each method, and what the last of ours takes to predict."""
    models: dict[str, Any] = {"crf": ChainCRF(), "memm": MaximumEntropyMarkovClassifier(), "m3n": ChainSVM()}
    row = {
        f"{name}_s": seconds(lambda m=model: m.fit(X, y), time.process_time) for name, model in models.items()
    }
    row["predict_s"] = seconds(lambda: models["m3n"].predict(X), time.process_time)
    rows = sparse.csr_array(sparse.vstack(X)) if sparse.issparse(X[0]) else np.concatenate(X)
    regression = LogisticRegression()
    row["scikit_learn_s"] = seconds(lambda: regression.fit(rows, np.concatenate(y)), time.process_time)
    return row


if __name__ == "__main__":
    main()
