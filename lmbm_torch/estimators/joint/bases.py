"""Any classifier as a classifier of label matrices, fitted at once or label by label."""

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

# Logit of a label with a single value in training.
LARGEST = 1e3


class LabelScorer(ClassifierMixin, BaseEstimator):
    """A classifier of label matrices from any classifier.

    The base sees label matrices in {0, 1}; after a refusal, copies are fitted label by label. With missing
    labels, classifiers of this library see NaN, and copies of every other base are fitted label by label to
    the rows with a known label.

    Args:
        base: the unfitted model, with ``fit`` and ``predict_proba``, or else ``decision_function``.

    Attributes:
        fitted_: the base, or its copies.
        classes_: (labels, 2).
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
        # Each library has errors of its own.
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
        """Return probabilities, or else logits, (instances, labels)."""
        model, num_labels = cast(Any, self.fitted_), len(self.classes_)
        if self.kind == "probabilities":
            classes = getattr(model, "classes_", None)
            return positive_probabilities(model.predict_proba(X), classes, num_labels)
        found = np.asarray(model.decision_function(X))
        found = score_matrix(found[:, None] if found.ndim == 1 else found)
        check_shape("base.decision_function", found, len(found), num_labels)
        return found

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return P(label = 1), (instances, labels), by the logistic function of logits."""
        found = self.scores(X)
        return found if self.kind == "probabilities" else expit(found)

    def predict(self, X: Any) -> np.ndarray:
        """Return labels (instances, labels) in {0, 1} of a probability above one half."""
        return (self.predict_proba(X) > 0.5).astype(np.int64)


class LabelByLabel(BaseEstimator):
    """Copies of a classifier, one for each label; a label with a single value in training keeps the value."""

    def __init__(self, base: Any) -> None:
        self.base = base

    def fit(self, X: Any, y: np.ndarray, **options: Any) -> Self:
        """Fit a copy for each label of labels (instances, labels) in {0, 1, NaN}, to the known labels."""
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
        """Return a fitted copy, or the single value of a label in training; 0 for a label never known."""
        known = ~np.isnan(labels)
        own = labels[known].astype(np.int64)
        if own.min(initial=1) == own.max(initial=0) or not len(own):
            return float(own[0]) if len(own) else 0.0
        # MultiOutputClassifier takes no single label, and its parts no single value.
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
