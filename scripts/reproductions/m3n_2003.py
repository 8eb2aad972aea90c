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
from reproductions.cells import Cell, Result
from sklearn.preprocessing import normalize

from lmbm_torch.data.sequences import SequenceData, Sequences
from lmbm_torch.data.sequences_named import load_ocr_letters
from lmbm_torch.energies import ChainEnergy
from lmbm_torch.estimators.chain import ChainCRF, ChainSVM
from lmbm_torch.estimators.chain_baselines import (
    IndependentPositions,
    MaximumEntropyMarkovClassifier,
    one_vs_rest_svm,
)
from lmbm_torch.estimators.multi_class_svm import MultiClassSVM
from lmbm_torch.estimators.sequences import Rows, SequenceClassifier
from lmbm_torch.models import HiddenMarkov
from lmbm_torch.models.emissions import Bernoulli
from lmbm_torch.models.sequences import spread
from lmbm_torch.viz import error_bars, transition_heatmap

COLUMNS = {
    "error": "character error",
    "deviation": "± over folds",
    "word_error": "word error",
    "fit_seconds": "training a fold (s)",
    "gap": "largest gap",
    "settings": "chosen",
    "folds": "folds",
}
LINEAR_FOLDS, KERNEL_FOLDS = 10, 3
"""Folds that are trained on; kernels take minutes each."""
DRAWN = "M3N, linear"
# A looser gap than the default: the error no longer changes in its third digit.
GAP = {"tol": 3e-3, "random_state": 0}


class HiddenMarkovWords(SequenceClassifier):
    """A hidden Markov model with Bernoulli emissions, by counting.

    Args:
        smoothing: pseudo-observations of everything.
    """

    def __init__(self, smoothing=1.0):
        self.smoothing = smoothing

    def fit(self, X, y):
        rows, codes = self._validate_fit(X, y)
        self.model_ = HiddenMarkov(Bernoulli(len(self.classes_), self.n_features_in_)).double()
        lengths = torch.from_numpy(np.diff(rows.start))
        inside = torch.arange(int(lengths.max())) < lengths[:, None]
        labels = spread(torch.from_numpy(codes), inside)
        self.model_.count(self._bits(rows), labels, lengths, smoothing=self.smoothing)
        return self

    def _energy(self, rows: Rows) -> ChainEnergy:
        return self.model_(self._bits(rows), torch.from_numpy(np.diff(rows.start)))

    def _bits(self, rows: Rows) -> torch.Tensor:
        return torch.from_numpy(np.sign(np.asarray(rows.features, np.float64)))


def independent_multi_class(C, **kernel) -> IndependentPositions:
    return IndependentPositions(MultiClassSVM(C, **kernel, **GAP))


QUADRATIC = {"kernel": "poly", "degree": 2, "gamma": 1.0, "coef0": 1.0}
METHODS: dict[str, tuple[Callable[..., Any], dict[str, Sequence[float]], int]] = {
    "independent SVMs, linear": (
        lambda C: IndependentPositions(one_vs_rest_svm(C)),
        {"C": (1, 10)},
        LINEAR_FOLDS,
    ),
    "multi-class SVM, linear": (independent_multi_class, {"C": (0.3, 1, 3)}, LINEAR_FOLDS),
    "HMM": (HiddenMarkovWords, {"smoothing": (0.1, 1)}, LINEAR_FOLDS),
    "MEMM": (MaximumEntropyMarkovClassifier, {"C": (3, 10)}, LINEAR_FOLDS),
    # The bound on what is left of the objective is loose: a hundred steps end training, not a certificate.
    "CRF": (partial(ChainCRF, max_iter=100), {"C": (3, 10)}, LINEAR_FOLDS),
    "M3N, linear": (partial(ChainSVM, **GAP), {"C": (0.5, 1, 2)}, LINEAR_FOLDS),
    "M3N, quadratic kernel": (partial(ChainSVM, **QUADRATIC, **GAP), {"C": (0.3, 1, 3)}, KERNEL_FOLDS),
    "M3N, RBF kernel": (
        partial(ChainSVM, kernel="rbf", **GAP),
        {"C": (1, 3), "gamma": (1.0, 2.0)},
        KERNEL_FOLDS,
    ),
    "multi-class SVM, quadratic kernel": (
        partial(independent_multi_class, **QUADRATIC),
        {"C": (0.3, 1, 3)},
        KERNEL_FOLDS,
    ),
    "multi-class SVM, RBF kernel": (
        partial(independent_multi_class, kernel="rbf"),
        {"C": (1, 3), "gamma": (1.0, 2.0)},
        KERNEL_FOLDS,
    ),
}


def cells(sets: Sequence[str], folder: str) -> Iterator[Cell]:
    """One cell for each method on the words found in ``folder``."""
    for name in sets:
        data = load_ocr_letters(folder)
        for method, (make, grid, folds) in METHODS.items():
            yield Cell(name, method, partial(train_and_test, data, make, grid, folds))


def train_and_test(
    data: SequenceData, make: Callable[..., Any], grid: dict[str, Sequence[float]], folds: int
) -> Result:
    """Choose settings on the first fold, then train on each fold and test on the others."""
    settings = choose(unit_length(data.within(0)), make, grid)
    errors, word_errors, seconds, gaps = [], [], [], []
    for fold in range(folds):
        train, test = unit_length(data.within(fold)), unit_length(data.outside(fold))
        model = make(**settings)
        started = time.perf_counter()
        model.fit(*train)
        seconds.append(time.perf_counter() - started)
        predicted = model.predict(test.features)
        wrong = [each != truth for each, truth in zip(predicted, test.labels, strict=True)]
        errors.append(float(np.concatenate(wrong).mean()))
        word_errors.append(float(np.mean([each.any() for each in wrong])))
        gaps.append(gap_of(model))
        transition = getattr(model, "transition_", None)
    return {
        "error": float(np.mean(errors)),
        "deviation": float(np.std(errors)),
        "word_error": float(np.mean(word_errors)),
        "fit_seconds": float(np.mean(seconds)),
        "gap": None if None in gaps else max(gaps),
        "settings": ", ".join(f"{name} = {value:g}" for name, value in settings.items()),
        "folds": f"{folds} of {data.num_folds}",
        "_errors": errors,
        "_transition": None if transition is None else transition.tolist(),
        "_label_names": data.label_names,
    }


def choose(words: Sequences, make: Callable[..., Any], grid: dict[str, Sequence[float]]) -> dict[str, float]:
    """The settings that do best on every second word, having learned from the others."""
    learn = words.features[::2], words.labels[::2]
    judge = words.features[1::2], words.labels[1::2]
    every = [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]
    return max(every, key=lambda settings: make(**settings).fit(*learn).score(*judge))


def unit_length(words: Sequences) -> Sequences:
    return Sequences([normalize(each) for each in words.features], words.labels)


def gap_of(model: Any) -> float | None:
    """The relative distance from the optimum that the solver has certified, where it does."""
    model = getattr(model, "classifier_", model)
    return getattr(model, "duality_gap_", getattr(model, "gap_", None))


def draw(results: list[Result], folder: Path) -> None:
    """Character errors with bars, and the transitions that the max-margin network has learned."""
    errors = {result["method"]: result["_errors"] for result in results}
    error_bars(errors, what="character error").savefig(folder / "errors.png", dpi=120)
    for result in results:
        if result["method"] == DRAWN:
            figure = transition_heatmap(np.array(result["_transition"]), result["_label_names"])
            figure.savefig(folder / "transitions.png", dpi=120)
