"""Explanations of classifiers whose fields cannot be taken apart: by which answers change."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils import get_tags

from lmbm_torch.checks import check_shape
from lmbm_torch.data.features import numbered
from lmbm_torch.estimators.contributions import Contributions, dense, left_out_at, most_effective, with_value

__all__ = ["AnswerFields", "check_label_matrices"]

Effects = Callable[[np.ndarray], np.ndarray]
"""Rows (instances, features) → what features matter to, (instances, labels)."""


class AnswerFields:
    """Of a classifier of label matrices: probabilities without parts, and features left out one at a time.

    Args:
        model: fitted, for arrays (:func:`~lmbm_torch.estimators.explanations.without_names`).
        effects: features matter most that change these most.
        X: (1, features), validated.
        reference: (features,), where a feature is left out; None for the training means.

    Raises:
        ValueError: more or fewer instances than one, a model of classes, a reference of another shape.
    """

    def __init__(self, model: Any, effects: Effects, X: Any, reference: ArrayLike | None) -> None:
        check_label_matrices(model)
        check_shape("X", X, 1, None)
        self.model, self.effects = model, effects
        width = X.shape[1]
        self.reference = left_out_at(model, reference, width)
        self.names: Sequence[str] = model.label_names_
        named = getattr(model, "names_of_features_", None)
        self.features = numbered("feature", width) if named is None else named

    def contributions(self, X: Any, labels: np.ndarray) -> Contributions:
        count, fields = len(labels), self.probabilities(X)[0]
        units = ["unknown"] * count
        return Contributions(fields, fields, (), np.zeros((count, 0)), np.zeros((count, count)), units)

    def probabilities(self, X: Any) -> np.ndarray:
        """P(y_i = 1 | x), (instances, labels); NaN of a classifier that has none."""
        if hasattr(self.model, "predict_proba"):
            return self.model.predict_proba(X)
        return np.full((X.shape[0], len(self.names)), np.nan)

    def without(self, X: Any, labels: np.ndarray, count: int) -> Iterator[tuple[str, Any]]:
        # Kernel values are no features.
        if get_tags(self.model).input_tags.pairwise:
            return
        row = dense(X)
        for place in most_effective(row, self.reference, self.effects)[:count]:
            yield self.features[place], with_value(row, place, self.reference[place])


def check_label_matrices(model: Any) -> None:
    """Refuse a model of classes."""
    if model.binarizer_ is not None:
        raise ValueError("explain: expected a model of label matrices, got one that was fitted to classes")
