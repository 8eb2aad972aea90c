"""Explanations of an automatic choice: fields of the heaviest member, answers of the mixture."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from lmbm_torch.constraints import Constraints, Rule
from lmbm_torch.data.features import numbered
from lmbm_torch.data.rows import num_instances
from lmbm_torch.estimators.automatic.beliefs import beliefs, marginals
from lmbm_torch.estimators.automatic.blend import pooled
from lmbm_torch.estimators.explain.chains import ChainFields
from lmbm_torch.estimators.explain.contributions import (
    AnswerFields,
    Contributions,
    Fields,
    are_taken_apart,
    fields_of,
)
from lmbm_torch.estimators.explain.explanations import Answer, Decode
from lmbm_torch.estimators.label_chains.probabilistic import ProbabilisticClassifierChain

Restricted = Callable[[tuple[Rule, ...]], Constraints | None]


def answering(labels: Callable[[Any, Constraints | None], np.ndarray], rules: Restricted) -> Decode:
    """Return the decoder of one instance; known labels are held by further rules.

    Args:
        labels: (instances, rules) → answers.
        rules: further rules → all rules; raises ValueError for contradictions.
    """

    def decode(X: np.ndarray, known: np.ndarray | None) -> Answer | None:
        held = () if known is None else _held(known[0])
        try:
            allowed = rules(held)
        except ValueError:
            return None
        return Answer.of(labels(X, allowed))

    return decode


class MemberFields(AnswerFields):
    """The fields of a fitted mixture: of the heaviest member if additive, otherwise probabilities.

    Args:
        model: with ``members_``, pipelines of scalings and classifiers, and ``weights_``.
        X, reference: see :class:`AnswerFields`.
    """

    def __init__(self, model: Any, X: Any, reference: ArrayLike | None) -> None:
        super().__init__(model, self._probabilities_or_labels, X, reference)
        self.heaviest = model.members_[int(model.weights_.argmax())]

    def contributions(self, X: Any, labels: np.ndarray) -> Contributions:
        fields = self._apart(X)
        if fields is None:
            return super().contributions(X, labels)
        parts = replace(fields.contributions(self._scaled(X), labels), whose=self._whose())
        # Scalings keep the columns; the sources of a kernel are rows.
        are_features = list(parts.sources) == list(numbered("feature", len(self.features)))
        return replace(parts, sources=self.features) if are_features else parts

    def probabilities(self, X: Any) -> np.ndarray:
        found = [beliefs(member, X) for member in self.model.members_]
        known = [each for each in found if each is not None]
        if len(known) < len(found):
            return np.full((num_instances(X), len(self.names)), np.nan)
        return marginals(pooled(self.model.weights_, known))

    def _probabilities_or_labels(self, rows: np.ndarray) -> np.ndarray:
        found = self.probabilities(rows)
        return self.model._labels(rows, None) if np.isnan(found).any() else found

    def _apart(self, X: Any) -> Fields | None:
        """Return the additive fields of the heaviest member, if any."""
        classifier: Any = self.heaviest[-1]
        if isinstance(classifier, ProbabilisticClassifierChain):
            return ChainFields(classifier.members_, self.names, self.features, None)
        return fields_of(classifier, None) if are_taken_apart(classifier, self._scaled(X)) else None

    def _whose(self) -> str:
        count, kind = len(self.model.members_), type(self.heaviest[-1]).__name__
        return kind if count == 1 else f"{kind}, the heaviest of {count}"

    def _scaled(self, X: Any) -> Any:
        return self.heaviest[:-1].transform(X)


def _held(known: np.ndarray) -> tuple[Rule, ...]:
    """Return a rule for each known label, named by index, with the label fixed at the known value."""
    return tuple(
        Rule({label: -1.0}, -1.0, f"{label}") if known[label] else Rule({label: 1.0}, 0.0, f"not {label}")
        for label in np.flatnonzero(~np.isnan(known)).tolist()
    )
