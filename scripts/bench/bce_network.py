"""A network of one hidden layer trained by binary cross-entropy, under the protocol of `lmbm compare`.

What most people train where an image or a text has several tags. The same splits, as many settings tried, and
the same scalings to choose from as in results/compare_scene.md and results/compare_seven_segment.md, so that
its row can be read beside theirs. CPU time; whether to stop early is chosen, how is as in scikit-learn.

    LMBM_DATA=... python scripts/bench/bce_network.py [--sets scene seven_segment]
"""

from __future__ import annotations

import warnings

import numpy as np
from measuring import described, table, write_csv
from scipy.stats import loguniform
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPClassifier

from lmbm_torch.compare import trials
from lmbm_torch.compare.methods import Tuned
from lmbm_torch.data import MultilabelData, SevenSegment, load
from lmbm_torch.data.splits import stratified_split

# Its outputs are logistic and its loss the binary cross-entropy where targets are label vectors.
NETWORK = Tuned(
    MLPClassifier(max_iter=300, random_state=0),
    {
        "hidden_layer_sizes": [(64,), (256,)],
        "alpha": loguniform(1e-5, 1),
        "learning_rate_init": loguniform(3e-4, 1e-2),
        "early_stopping": [False, True],
    },
)
PROTOCOL = trials.Settings(splits=6, test_fraction=0.3, budget=8, folds=3, seed=0)


def row(data: MultilabelData) -> dict[str, object]:
    """Return means and deviations over the splits."""
    results = []
    for seed in range(PROTOCOL.seed, PROTOCOL.seed + PROTOCOL.splits):
        split = data.with_split(*stratified_split(data.labels, PROTOCOL.test_fraction, seed))
        results.append(trials.try_tuned(split, NETWORK, PROTOCOL, seed))
        print(f"{data.name}, split {seed}: exact match {results[-1]['exact_match']:.3f}", flush=True)
    found: dict[str, object] = {"set": data.name, "method": "BCE network"}
    for key in trials.MEASURES:
        values = np.array([result[key] for result in results])
        found |= {key: float(values.mean()), f"{key}_deviation": float(values.std(ddof=1))}
    found |= {key: float(np.mean([result[key] for result in results])) for key in trials.SECONDS}
    return found | {"splits": PROTOCOL.splits, "budget": PROTOCOL.budget, "folds": PROTOCOL.folds}


def main() -> None:
    parser = described(__file__, __doc__)
    parser.add_argument("--sets", nargs="+", default=["scene", "seven_segment"])
    asked = parser.parse_args()
    warnings.filterwarnings("ignore", category=ConvergenceWarning)
    with table(asked.output, asked.name):
        rows = [row(SevenSegment() if name == "seven_segment" else load(name)) for name in asked.sets]
        write_csv(asked.output / "table.csv", rows)
    print(f"written to {asked.output}")


if __name__ == "__main__":
    main()
