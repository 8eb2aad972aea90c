"""Text chunking by a conditional random field, beside CRFsuite on the very same features.

CoNLL-2000 with windows of words and tags: 338,547 indicators, 23 labels. Both minimise ½‖w‖² − C Σ log p by
L-BFGS, with every feature for every label, and are given as many iterations; ours has intercepts too, and
CRFsuite's own number for the penalty is ``c2`` = 1/(2C). It is measured where ``pycrfsuite`` is installed
(the extra ``bench``). Beside the seconds on the clock stand those of the processor, of all threads together:
these are to be compared, since the machine of the results kept here had other work too, while CRFsuite ran.

Floor: a gradient reads each of the 4.0 million indicators of the training part twice, against 23 weights:
183 million multiply-adds, some 0.1 s on one core.

    python scripts/bench/conll_crf.py [--iterations 45] [--C 1.0]
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from measuring import described, table, write_csv

from lmbm_torch.data import SequenceData, load_conll2000
from lmbm_torch.estimators import ChainCRF
from lmbm_torch.metrics import chunk_f1, sequence_accuracy

Labels = list[np.ndarray]
Found = tuple[dict[str, float], Labels]
"""The cost of a training, and the predictions for the test part."""


def padded(sequences: Labels) -> torch.Tensor:
    rows = [torch.from_numpy(np.asarray(each, np.int64)) for each in sequences]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-1)


def trained(train: Callable[[], object]) -> dict[str, float]:
    """Return seconds that a call takes, on the clock and of the processor."""
    clock, processor = time.perf_counter(), time.process_time()
    train()
    return {
        "train_seconds": round(time.perf_counter() - clock, 1),
        "processor_seconds": round(time.process_time() - processor, 1),
    }


def ours(data: SequenceData, iterations: int, C: float) -> Found:
    train, test = data.within(0), data.within(1)
    crf = ChainCRF(C, max_iter=iterations)
    took = trained(lambda: crf.fit(*train))
    found = {"iterations": crf.n_iter_, "objective": round(crf.objective_), **took}
    return found, crf.predict(test.features)


def crfsuite(data: SequenceData, iterations: int, C: float) -> Found:
    library = import_module("pycrfsuite")
    names = np.array(data.feature_names)
    train, test = data.within(0), data.within(1)

    def attributes(rows) -> list[list[str]]:
        return [names[each].tolist() for each in np.split(rows.indices, rows.indptr[1:-1])]

    trainer = library.Trainer(algorithm="lbfgs", verbose=False)
    trainer.set_params(
        {
            "c2": 0.5 / C,
            "max_iterations": iterations,
            "feature.possible_states": True,
            "feature.possible_transitions": True,
        }
    )
    for rows, labels in zip(*train, strict=True):
        trainer.append(attributes(rows), [str(label) for label in labels])
    with tempfile.TemporaryDirectory() as folder:
        file = str(Path(folder) / "model")
        took = trained(lambda: trainer.train(file))
        tagger = library.Tagger()
        tagger.open(file)
        predicted = [np.array(list(map(int, tagger.tag(attributes(rows))))) for rows in test.features]
        tagger.close()
    last = trainer.logparser.last_iteration
    return {"iterations": last["num"], "objective": round(last["loss"]), **took}, predicted


def main() -> None:
    parser = described(__file__, __doc__)
    parser.add_argument("--iterations", type=int, default=45)
    parser.add_argument("--C", type=float, default=1.0)
    options = parser.parse_args()
    data = load_conll2000()
    target = padded(data.within(1).labels)
    methods: dict[str, Callable] = {"ChainCRF": ours}
    if find_spec("pycrfsuite"):
        methods["CRFsuite"] = crfsuite
    rows = []
    for name, method in methods.items():
        found, predicted = method(data, options.iterations, options.C)
        preds = padded(predicted)
        rows.append(
            {
                "method": name,
                **found,
                "threads": torch.get_num_threads() if method is ours else 1,
                "chunk_f1": round(chunk_f1(preds, target, data.label_names), 4),
                "sentence_accuracy": round(sequence_accuracy(preds, target), 4),
            }
        )
        print(rows[-1], flush=True)
    with table(options.output, options.name) as folder:
        write_csv(folder / "table.csv", rows)


if __name__ == "__main__":
    main()
