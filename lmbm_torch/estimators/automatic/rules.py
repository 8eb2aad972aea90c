"""Rules from beliefs to answers, for metrics that the most probable labelling does not serve best."""

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
from lmbm_torch.inference.expected.bayes import labelling_of_most_f1
from lmbm_torch.protocol import Capabilities

# Of a classifier that decodes no label vectors.
NO_DECODER = Capabilities(predicts_by_decode=False)
THRESHOLDS = tuple(np.arange(1, 13) / 20)
"""Those that labels may have."""


@dataclass(frozen=True)
class ExpectedF1:
    """The labelling of largest expected F1 (Dembczyński et al. 2011)."""

    def answer(self, beliefs: Beliefs) -> np.ndarray:
        """Labels (instances, labels)."""
        return labelling_of_most_f1(*self._weights(beliefs)).numpy()

    def allowed(self, beliefs: Beliefs, constraints: Constraints) -> np.ndarray:
        """The best labels that rules allow: of each number of labels those that have most, by a search."""
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
        """What each label adds to the expected F1 of an answer of each size, and that of the empty one."""
        sizes = torch.arange(1, beliefs.shape[2] + 1)
        answers = torch.arange(1, beliefs.shape[1] + 1)
        believed = torch.from_numpy(beliefs)
        weights = believed @ (2 / (sizes[:, None] + answers)).to(believed)
        return weights, 1 - (believed / sizes).sum((1, 2))

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

    def allowed(self, beliefs: Beliefs, constraints: Constraints) -> np.ndarray:
        """The labels, allowed by rules, whose probabilities are most above their thresholds in all."""
        return most_allowed(marginals(beliefs) - np.array(self.thresholds), constraints)

    def __str__(self) -> str:
        return "above " + ", ".join(f"{each:g}" for each in self.thresholds)


def most_allowed(gains: np.ndarray, constraints: Constraints) -> np.ndarray:
    """The labels that rules allow whose gains, (instances, labels), have the largest sum."""
    unary = torch.from_numpy(np.asarray(gains, np.float64)) / 2
    energy = PairwiseEnergy(unary, unary.new_zeros(unary.shape[1], unary.shape[1]))
    return inference.decode(energy, constraints=constraints).labels.numpy()


def _of_size(constraints: Constraints, size: int) -> Constraints | None:
    """The rules for labellings of so many labels, if they allow any."""
    try:
        return Constraints((*constraints.rules, *exactly(size, constraints.names)), constraints.names)
    except ValueError:
        return None


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


def rules_for(metric: str, num_labels: int) -> tuple[Rule, ...]:
    """Those that are tried for a measure: of many labels nothing is believed but how probable each is."""
    without_sizes = num_labels > MANY_LABELS
    return tuple(rule for rule in RULES[metric] if not (without_sizes and isinstance(rule, ExpectedF1)))


def best_thresholds(probabilities: np.ndarray, truth: np.ndarray) -> Above:
    """For each label the threshold at which its F1 is largest, of equal ones the mean.

    Args:
        probabilities, truth: (instances, labels); NaN in the truth where a label is missing.
    """
    found = (probabilities[..., None] > THRESHOLDS) & ~np.isnan(truth)[..., None]
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


def allowed_answer(pipeline: Any, X: Any, rules: Constraints | None) -> np.ndarray:
    """A fitted pipeline's labels, under rules the best by its own decoding or those nearest to its answer."""
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
