"""Decision rules that choose labels from probabilities, for metrics other than exact match."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self, cast

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, clone

from lmbm_torch import inference
from lmbm_torch.constraints import Constraints, exactly
from lmbm_torch.data.rows import some_instances
from lmbm_torch.energies import PairwiseEnergy
from lmbm_torch.estimators.automatic.beliefs import MANY_LABELS, Beliefs, beliefs, marginals
from lmbm_torch.estimators.automatic.candidates import answers_of
from lmbm_torch.estimators.common.under_rules import by_place
from lmbm_torch.inference.expected.measures import labelling_of_most_f1
from lmbm_torch.protocol import Capabilities

# Assumed for classifiers without ``capabilities``: these cannot decode under constraints.
NO_DECODER = Capabilities(predicts_by_decode=False)
THRESHOLDS = tuple((np.arange(1, 13) / 20).tolist())
"""Thresholds to try: for each label separately or, with many labels, a common threshold for all labels."""


@dataclass(frozen=True)
class ExpectedF1:
    """The decision rule that answers with the label set of largest expected F1 (Dembczyński et al. 2011)."""

    def answer(self, beliefs: Beliefs) -> np.ndarray:
        """Return the chosen labels in {0, 1}, (instances, labels)."""
        return labelling_of_most_f1(*self._weights(beliefs)).numpy()

    measured = answer

    def allowed(self, beliefs: Beliefs, constraints: Constraints) -> np.ndarray:
        """Return the allowed labels of largest expected F1, found by decoding for each number of labels."""
        weights, empty = self._weights(beliefs)
        none = np.zeros((len(beliefs), beliefs.shape[1]), np.int64)
        values = np.where(constraints.violated(none[:1]).any(), -np.inf, empty.double().numpy())
        best = none
        for size in range(1, beliefs.shape[1] + 1):
            rules = _of_size(constraints, size)
            if rules is None:
                continue
            gains = weights[:, :, size - 1].double().numpy()
            labels = most_allowed(gains, rules)
            own = (gains * labels).sum(1)
            best, values = np.where((own > values)[:, None], labels, best), np.maximum(own, values)
        return best

    def _weights(self, beliefs: Beliefs) -> tuple[torch.Tensor, torch.Tensor]:
        """Return each label's part of expected F1, by size of the answer, and the empty answer's F1."""
        sizes = torch.arange(1, beliefs.shape[2] + 1, device="cpu")
        answers = torch.arange(1, beliefs.shape[1] + 1, device="cpu")
        believed = torch.from_numpy(beliefs)
        weights = believed @ (2 / (sizes[:, None] + answers)).to(believed)
        return weights, 1 - (believed / sizes).sum((1, 2))

    def __str__(self) -> str:
        return "expected F1"


@dataclass(frozen=True)
class Above:
    """The decision rule that answers with the labels whose probability is above a threshold.

    Args:
        thresholds: a single threshold for all labels, or a threshold for each label.
    """

    thresholds: tuple[float, ...]

    def answer(self, beliefs: Beliefs) -> np.ndarray:
        """Return the chosen labels in {0, 1}, (instances, labels)."""
        return (marginals(beliefs) > self.thresholds).astype(np.int64)

    measured = answer

    def allowed(self, beliefs: Beliefs, constraints: Constraints) -> np.ndarray:
        """Return the allowed labels with the largest sum of (probability − threshold)."""
        return most_allowed(marginals(beliefs) - np.array(self.thresholds), constraints)

    def __str__(self) -> str:
        return "above " + ", ".join(f"{each:g}" for each in self.thresholds)


@dataclass(frozen=True)
class Probable(Above):
    """The decision rule for log loss: a threshold of 1/2, but the metric is computed from probabilities."""

    thresholds: tuple[float, ...] = (0.5,)

    def measured(self, beliefs: Beliefs) -> np.ndarray:
        """Return the probabilities P(y_i = 1), (instances, labels), for the metric."""
        return marginals(beliefs)


def most_allowed(gains: np.ndarray, constraints: Constraints) -> np.ndarray:
    """Return the allowed labels with the largest sum of ``gains``, (instances, labels)."""
    unary = torch.from_numpy(np.asarray(gains, np.float64)) / 2
    energy = PairwiseEnergy(unary, unary.new_zeros(unary.shape[1], unary.shape[1]))
    return inference.decode(energy, constraints=constraints).labels.numpy()


def _of_size(constraints: Constraints, size: int) -> Constraints | None:
    """Add the rule that exactly ``size`` labels are present; return None if no label set is allowed."""
    try:
        return Constraints((*constraints.rules, *exactly(size, constraints.names)), constraints.names)
    except ValueError:
        return None


Rule = ExpectedF1 | Above
COMMON = tuple(Above((each,)) for each in (0.5, 0.4, 0.3, 0.2, 0.1))
FINE = tuple(Above((each,)) for each in reversed(THRESHOLDS))
RULES: dict[str, tuple[Rule, ...]] = {
    "exact_match": (),
    "hamming": (Above((0.5,)),),
    "sample_f1": (ExpectedF1(), *COMMON[:4]),
    "jaccard": (ExpectedF1(), *COMMON[:4]),
    "macro_f1": COMMON,
    "micro_f1": COMMON,
    "log_loss": (Probable(),),
}
"""Name of a metric → the decision rules to try; exact match needs none, because models decode themselves."""


def rules_for(metric: str, num_labels: int) -> tuple[Rule, ...]:
    """Return the decision rules to try for a metric; with many labels only thresholds, but more of them."""
    rules = RULES[metric]
    return FINE if num_labels > MANY_LABELS and len(rules) > 1 else rules


def best_thresholds(probabilities: np.ndarray, truth: np.ndarray) -> Above:
    """Return for each label the threshold of largest F1; if several are equally good, their mean.

    Args:
        probabilities, truth: P(y_i = 1) and the true labels, (instances, labels); NaN for a missing label.
    """
    found = (probabilities[..., None] > THRESHOLDS) & ~np.isnan(truth)[..., None]
    present = truth[..., None] == 1
    values = 2 * (found & present).sum(0) / np.maximum(found.sum(0) + present.sum(0), 1)
    largest = values == values.max(-1, keepdims=True)
    return Above(tuple(((largest * THRESHOLDS).sum(-1) / largest.sum(-1)).tolist()))


def held_out_thresholds(
    probabilities: Sequence[np.ndarray], truths: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """Return the labels for each fold, by the best thresholds for the other folds."""
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
    """A pipeline whose labels are chosen by a decision rule from the pipeline's probabilities.

    Args:
        pipeline: scalings and a classifier with probabilities.
        rule: decision rule, such as :class:`ExpectedF1`.
    """

    def __init__(self, pipeline, rule):
        self.pipeline = pipeline
        self.rule = rule

    def fit(self, X: Any, y: Any) -> Self:
        """Train the pipeline."""
        self.pipeline_ = cast(Any, clone(self.pipeline)).fit(X, y)
        self.classes_ = self.pipeline_.classes_
        return self

    def predict(self, X: Any) -> np.ndarray:
        """Return the chosen labels in {0, 1}, (instances, labels)."""
        found = beliefs(self.pipeline_, X)
        assert found is not None
        return self.rule.answer(found)


def allowed_answer(pipeline: Any, X: Any, rules: Constraints | None) -> np.ndarray:
    """Predict labels under constraints; if the pipeline cannot decode, take the nearest allowed labels."""
    labels = answers_of(pipeline, X)
    if rules is None or not (broken := rules.violated(labels).any(1)).any():
        return labels
    model, rows = pipeline[-1], pipeline[:-1].transform(some_instances(X, broken))
    if getattr(model, "capabilities", NO_DECODER).predicts_by_decode:
        labels[broken] = model.decode(rows, constraints=by_place(rules)).labels.cpu().numpy()
    else:
        free = np.full(rules.num_labels, np.nan)
        nearest: Any = [rules.nearest(each, free) for each in labels[broken].astype(np.float64)]
        labels[broken] = nearest
    return labels
