"""Wrappers that make any classifier a classifier of label matrices, fitted at once or label by label."""

from __future__ import annotations

from functools import partial
from typing import Any, Self, cast

import numpy as np
from scipy.special import expit
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.multioutput import MultiOutputClassifier

from lmbm_torch.checks import check_shape
from lmbm_torch.data.rows import num_instances, some_instances
from lmbm_torch.estimators.common.base import StructuredClassifier
from lmbm_torch.estimators.joint.scores import positive_probabilities, score_matrix
from lmbm_torch.estimators.label_chains.links import ClassifierOfLabels

# Magnitude of the logits of a label that has only one value in training.
LARGEST = 1e3


class LabelScorer(ClassifierMixin, BaseEstimator):
    """A classifier of label matrices made from any classifier.

    The base is fitted to a label matrix in {0, 1}. If the base refuses label matrices, a copy is fitted for
    each label. If labels are missing, a base of the library gets NaN; of every other base, a copy is fitted
    for each label, to the rows where the label is known.

    Args:
        base: the unfitted model, with ``fit`` and ``predict_proba``, or else ``decision_function``.

    Attributes:
        fitted_: the fitted base, or the fitted copies.
        classes_: (labels, 2), the values 0 and 1 of each label.
    """

    _refuses = False

    def __init__(self, base: Any) -> None:
        self.base = base

    def fit(self, X: Any, y: np.ndarray, sample_weight: np.ndarray | None = None) -> Self:
        """Fit to labels (instances, labels) in {0, 1, NaN} and weights (instances,)."""
        options = {} if sample_weight is None else {"sample_weight": sample_weight}
        has_missing = bool(np.isnan(y).any())
        takes_missing = isinstance(self.base, StructuredClassifier | ClassifierOfLabels)
        own = y if has_missing else y.astype(np.int64)
        self.classes_ = np.tile([0, 1], (y.shape[1], 1))
        if self._refuses or (has_missing and not takes_missing):
            self.fitted_ = LabelByLabel(self.base).fit(X, own, **options)
            return self
        try:
            self.fitted_ = cast(Any, clone(self.base)).fit(
                X, own[:, 0] if own.shape[1] == 1 else own, **options
            )
        # Catch all errors: each library refuses label matrices by another error.
        except Exception as refusal:
            try:
                self.fitted_ = LabelByLabel(self.base).fit(X, own, **options)
            except Exception as error:
                raise error from refusal
            self._refuses = True
        return self

    @property
    def kind(self) -> str:
        """The kind of :meth:`scores`, see :data:`~lmbm_torch.estimators.joint.scores.KINDS`."""
        return "probabilities" if hasattr(self.fitted_, "predict_proba") else "logits"

    def scores(self, X: Any) -> np.ndarray:
        """Return probabilities (instances, labels), or logits if the base has no probabilities."""
        model, num_labels = cast(Any, self.fitted_), len(self.classes_)
        if self.kind == "probabilities":
            classes = getattr(model, "classes_", None)
            return positive_probabilities(model.predict_proba(X), classes, num_labels)
        found = np.asarray(model.decision_function(X))
        found = score_matrix(found[:, None] if found.ndim == 1 else found)
        check_shape("base.decision_function", found, len(found), num_labels)
        return found

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return P(label = 1), (instances, labels); logits are converted by the logistic function."""
        found = self.scores(X)
        return found if self.kind == "probabilities" else expit(found)

    def predict(self, X: Any) -> np.ndarray:
        """Return labels (instances, labels): 1 if the probability is above one half, else 0."""
        return (self.predict_proba(X) > 0.5).astype(np.int64)


class LabelByLabel(BaseEstimator):
    """Copies of a classifier, one for each label; a label with one value in training keeps the value."""

    def __init__(self, base: Any) -> None:
        self.base = base

    def fit(self, X: Any, y: np.ndarray, **options: Any) -> Self:
        """Fit a copy for each label, to the known values, from labels (instances, labels) in {0, 1, NaN}."""
        self.models_ = [self._fitted(X, own, options) for own in y.T]
        fitted = next((each for each in self.models_ if not isinstance(each, float)), None)
        for name in ("n_features_in_", "feature_names_in_"):
            if hasattr(fitted, name):
                setattr(self, name, getattr(fitted, name))
        of_logits = not hasattr(fitted, "predict_proba") and hasattr(fitted, "decision_function")
        method = "decision_function" if of_logits else "predict_proba"
        setattr(self, method, partial(self._columns, method))
        return self

    def _fitted(self, X: Any, labels: np.ndarray, options: dict[str, np.ndarray]) -> Any:
        """Return a fitted copy, or the only value of a label in training (0 if the label is never known)."""
        known = ~np.isnan(labels)
        own = labels[known].astype(np.int64)
        if own.min(initial=1) == own.max(initial=0) or not len(own):
            return float(own[0]) if len(own) else 0.0
        # MultiOutputClassifier refuses a single label: use the classifier inside.
        base: Any = self.base.estimator if isinstance(self.base, MultiOutputClassifier) else self.base
        if not known.all():
            X, options = some_instances(X, known), {name: each[known] for name, each in options.items()}
        return cast(Any, clone(base)).fit(X, own, **options)

    def _columns(self, method: str, X: Any) -> np.ndarray:
        of_constants = {"predict_proba": (0.0, 1.0), "decision_function": (-LARGEST, LARGEST)}[method]
        columns = [
            np.full(num_instances(X), of_constants[int(each)])
            if isinstance(each, float)
            else _values(getattr(each, method)(X))
            for each in self.models_
        ]
        return np.column_stack(columns)


def _values(came: Any) -> np.ndarray:
    """Return the scores of a single label, (instances,)."""
    found = np.asarray(came)
    return found if found.ndim == 1 else found[:, -1]
