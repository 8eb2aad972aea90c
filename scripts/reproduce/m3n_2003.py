"""Handwritten words after Taskar, Guestrin and Koller (NIPS 2003): chains beside independent letters.

Every method is trained on one of the ten folds and tested on the other nine; shown are means over the folds,
and their standard deviations. Settings are chosen on the first fold alone: half of its words to learn from,
the other half to choose by. Images are vectors of binary pixels, scaled to length 1 but for the hidden Markov
model.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.preprocessing import normalize

from lmbm_torch.compare.tables import Result
from lmbm_torch.data.named import load_ocr_letters
from lmbm_torch.data.sequences.records import SequenceData, Sequences
from lmbm_torch.estimators.chains.base import Rows
from lmbm_torch.estimators.chains.baselines import IndependentPositions, MaximumEntropyMarkovClassifier
from lmbm_torch.estimators.chains.classifiers import ChainCRF, ChainSVM
from lmbm_torch.estimators.chains.hidden_markov import HiddenMarkovClassifier
from lmbm_torch.estimators.classes import MultiClassSVM
from lmbm_torch.estimators.common.baselines import independent_svm
from lmbm_torch.files import write_figure
from lmbm_torch.viz.dependencies import transition_heatmap
from reproduce.cells import Cell
from reproduce.figures import error_bars

COLUMNS = {
    "error": "character error",
    "deviation": "± over folds",
    "word_error": "word error",
    # Seconds on the clock are in the CSV alone: they are those of a machine that had other work too.
    "processor_seconds": "training a fold (s of processor)",
    "gap": "largest gap",
    "settings": "chosen",
    "folds": "folds",
}
DRAWN = "M3N, linear"
# A looser gap than the default: the error no longer changes in its third digit.
GAP = {"tol": 3e-3, "random_state": 0}


class HiddenMarkovWords(HiddenMarkovClassifier):
    """A hidden Markov model with Bernoulli emissions, by counting, of what is not 0 in the features.

    Args:
        smoothing: pseudo-observations of everything.
    """

    def __init__(self, smoothing=1.0):
        super().__init__("bernoulli", smoothing=smoothing)

    def _observed(self, rows: Rows) -> torch.Tensor:
        return torch.from_numpy(np.sign(np.asarray(rows.features, np.float64)))


def independent_multi_class(C, **kernel) -> IndependentPositions:
    """Return a multi-class SVM for each letter by itself."""
    return IndependentPositions(MultiClassSVM(C, **kernel, **GAP))


QUADRATIC = {"kernel": "poly", "kernel_degree": 2, "gamma": 1.0, "coef0": 1.0}
Method = tuple[Callable[..., Any], dict[str, Sequence[float]]]
"""Settings → estimator, and the values of each setting to choose from."""
LINEAR: dict[str, Method] = {
    "independent SVMs, linear": (lambda C: IndependentPositions(independent_svm(C)), {"C": (1, 10)}),
    "multi-class SVM, linear": (independent_multi_class, {"C": (0.3, 1, 3)}),
    "HMM": (HiddenMarkovWords, {"smoothing": (0.1, 1.0)}),
    "MEMM": (MaximumEntropyMarkovClassifier, {"C": (3, 10)}),
    "CRF": (ChainCRF, {"C": (3, 10, 30)}),
    "M3N, linear": (partial(ChainSVM, **GAP), {"C": (1, 2, 4)}),
}
KERNEL: dict[str, Method] = {
    "M3N, quadratic kernel": (partial(ChainSVM, **QUADRATIC, **GAP), {"C": (0.3, 1, 3)}),
    "M3N, RBF kernel": (partial(ChainSVM, kernel="rbf", **GAP), {"C": (1, 3), "gamma": (1.0, 2.0)}),
    "multi-class SVM, quadratic kernel": (
        partial(independent_multi_class, **QUADRATIC),
        {"C": (0.3, 1, 3)},
    ),
    "multi-class SVM, RBF kernel": (
        partial(independent_multi_class, kernel="rbf"),
        {"C": (1, 3), "gamma": (1.0, 2.0)},
    ),
}


def cells(sets: Sequence[str], folder: str, folds: int, kernel_folds: int) -> Iterator[Cell]:
    """Yield for each method its settings, and then one cell for each fold to train on.

    Args:
        sets: names of the data.
        folder: where they are found.
        folds: how many of the ten are trained on, with kernels ``kernel_folds``.
    """
    for name in sets:
        data = load_ocr_letters(folder)
        for methods, count in ((LINEAR, folds), (KERNEL, kernel_folds)):
            for method, (make, grid) in methods.items():
                settings = f"{method}: settings"
                yield Cell(name, settings, partial(choose, unit_length(data.within(0)), make, grid))
                for fold in range(count):
                    run = partial(train_and_test, data, make, method, fold)
                    yield Cell(name, f"{method}: fold {fold}", run, after=settings)


def train_and_test(
    data: SequenceData, make: Callable[..., Any], method: str, fold: int, chosen: Result
) -> Result:
    """Train on one fold and test on the others."""
    train, test = unit_length(data.within(fold)), unit_length(data.outside(fold))
    model = make(**chosen["settings"])
    started, at_work = time.perf_counter(), time.process_time()
    model.fit(*train)
    seconds, processor_seconds = time.perf_counter() - started, time.process_time() - at_work
    predicted = model.predict(test.features)
    wrong = [each != truth for each, truth in zip(predicted, test.labels, strict=True)]
    transition = getattr(model, "transition_", None)
    return {
        "method_name": method,
        "settings": chosen["settings"],
        "error": float(np.concatenate(wrong).mean()),
        "word_error": float(np.mean([each.any() for each in wrong])),
        "fit_seconds": seconds,
        "processor_seconds": processor_seconds,
        "gap": gap_of(model),
        "transition": None if transition is None else transition.tolist(),
        "label_names": data.label_names,
        "num_folds": data.num_folds,
    }


def summary(results: Sequence[Result]) -> list[Result]:
    """Return one row for each method: means over the folds that it was trained on."""
    trained = [result for result in results if "error" in result]
    rows = []
    for data, method in dict.fromkeys((result["data"], result["method_name"]) for result in trained):
        folds = [each for each in trained if (each["data"], each["method_name"]) == (data, method)]
        averaged = ("error", "word_error", "fit_seconds", "processor_seconds")
        gaps = [each["gap"] for each in folds if each["gap"] is not None]
        settings = folds[0]["settings"].items()
        rows.append(
            {
                "data": data,
                "method": method,
                **{key: float(np.mean([each[key] for each in folds])) for key in averaged},
                "deviation": float(np.std([each["error"] for each in folds])),
                "gap": max(gaps, default=None),
                "settings": ", ".join(f"{name} = {value:g}" for name, value in settings),
                "folds": f"{len(folds)} of {folds[0]['num_folds']}",
            }
        )
    return rows


def choose(words: Sequences, make: Callable[..., Any], grid: dict[str, Sequence[float]]) -> Result:
    """Return the settings that do best on every second word, having learned from the others."""
    learn = words.features[::2], words.labels[::2]
    judge = words.features[1::2], words.labels[1::2]
    every = [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]
    scores = [make(**settings).fit(*learn).score(*judge) for settings in every]
    return {"settings": every[int(np.argmax(scores))], "scores": scores}


def unit_length(words: Sequences) -> Sequences:
    """Return words whose letters' features have norm 1."""
    return Sequences([normalize(each) for each in words.features], words.labels)


def gap_of(model: Any) -> float | None:
    """Return the relative distance from the optimum that the solver has certified, where it does."""
    model = getattr(model, "classifier_", model)
    return getattr(model, "duality_gap_", None)


def draw(results: list[Result], folder: Path) -> None:
    """Plot character errors with bars, and the transitions of the trained max-margin network."""
    errors: dict[str, list[float]] = {}
    for result in results:
        if "error" in result:
            errors.setdefault(result["method_name"], []).append(result["error"])
        if result["method"] == f"{DRAWN}: fold 0":
            figure = transition_heatmap(np.array(result["transition"]), result["label_names"])
            write_figure(folder / "transitions.png", figure)
    write_figure(folder / "errors.png", error_bars(errors, what="character error"))
