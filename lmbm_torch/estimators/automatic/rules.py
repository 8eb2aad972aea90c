"""Rules from beliefs to answers, for metrics that the most probable labelling does not serve best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self, cast

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, clone

from lmbm_torch.estimators.automatic.beliefs import MANY_LABELS, Beliefs, beliefs, marginals
from lmbm_torch.inference.bayes import labelling_of_most_f1

THRESHOLDS = tuple(np.arange(1, 13) / 20)
"""Those that labels may have."""


@dataclass(frozen=True)
class ExpectedF1:
    """The labelling of largest expected F1 (Dembczyński et al. 2011)."""

    def answer(self, beliefs: Beliefs) -> np.ndarray:
        """Labels (instances, labels)."""
        sizes = torch.arange(1, beliefs.shape[2] + 1)
        answers = torch.arange(1, beliefs.shape[1] + 1)
        believed = torch.from_numpy(beliefs)
        weights = believed @ (2 / (sizes[:, None] + answers)).to(believed)
        return labelling_of_most_f1(weights, 1 - (believed / sizes).sum((1, 2))).numpy()

    def __str__(self) -> str:
        return "expected F1"


@dataclass(frozen=True)
class Above:
    """The labels whose probability is above a threshold.

    Args:
        thresholds: one, or one a label.
    """

    thresholds: tuple[float, ...]

    def answer(self, beliefs: Beliefs) -> np.ndarray:
        """Labels (instances, labels)."""
        return (marginals(beliefs) > self.thresholds).astype(np.int64)

    def __str__(self) -> str:
        return "above " + ", ".join(f"{each:g}" for each in self.thresholds)


Rule = ExpectedF1 | Above
COMMON = tuple(Above((each,)) for each in (0.5, 0.4, 0.3, 0.2, 0.1))
RULES: dict[str, tuple[Rule, ...]] = {
    "exact_match": (),
    "hamming": (Above((0.5,)),),
    "sample_f1": (ExpectedF1(), *COMMON[:4]),
    "jaccard": (ExpectedF1(), *COMMON[:4]),
    "macro_f1": COMMON,
    "micro_f1": COMMON,
}
"""Those that may serve a measure."""


def rules_of(metric: str, num_labels: int) -> tuple[Rule, ...]:
    """Those that are tried for a measure: of many labels nothing is believed but how probable each is."""
    without_sizes = num_labels > MANY_LABELS
    return tuple(rule for rule in RULES[metric] if not (without_sizes and isinstance(rule, ExpectedF1)))


def best_thresholds(probabilities: np.ndarray, truth: np.ndarray) -> Above:
    """For each label the threshold at which its F1 is largest, of equal ones the mean.

    Args:
        probabilities, truth: (instances, labels).
    """
    found = probabilities[..., None] > THRESHOLDS
    present = truth[..., None] == 1
    values = 2 * (found & present).sum(0) / np.maximum(found.sum(0) + present.sum(0), 1)
    largest = values == values.max(-1, keepdims=True)
    return Above(tuple(((largest * THRESHOLDS).sum(-1) / largest.sum(-1)).tolist()))


def held_out_thresholds(
    probabilities: Sequence[np.ndarray], truths: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """Each fold's answers at thresholds learned from the others."""
    answers = []
    for fold in range(len(truths)):
        others = [place for place in range(len(truths)) if place != fold]
        rule = best_thresholds(
            np.concatenate([probabilities[place] for place in others]),
            np.concatenate([truths[place] for place in others]),
        )
        answers.append((probabilities[fold] > rule.thresholds).astype(np.int64))
    return answers


class RuledClassifier(ClassifierMixin, BaseEstimator):
    """A pipeline whose answers are a rule's.

    Args:
        pipeline: one with probabilities.
        rule: from its beliefs to labels.
    """

    def __init__(self, pipeline, rule):
        self.pipeline = pipeline
        self.rule = rule

    def fit(self, X: Any, y: Any) -> Self:
        """Same as the pipeline's own method."""
        self.pipeline_ = cast(Any, clone(self.pipeline)).fit(X, y)
        self.classes_ = self.pipeline_.classes_
        return self

    def predict(self, X: Any) -> np.ndarray:
        """Labels (instances, labels)."""
        found = beliefs(self.pipeline_, X)
        assert found is not None
        return self.rule.answer(found)
