"""Wrappers that make any classifier a classifier of label matrices, fitted at once or label by label.

Scores of other libraries are converted to log-odds.
"""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any, Self, cast

import numpy as np
from scipy import sparse
from scipy.special import expit
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.multioutput import MultiOutputClassifier

from lmbm_torch.checks import check_finite, check_shape, level_of_caller
from lmbm_torch.data.rows import num_instances, some_instances
from lmbm_torch.estimators.common.base import StructuredClassifier
from lmbm_torch.estimators.common.targets import positive_probabilities
from lmbm_torch.estimators.label_chains.links import ClassifierOfLabels

KINDS = ("probabilities", "logits", "log_probabilities")


# A label with only one value in training gets this logit (value 1) or its negative (value 0).
LARGEST = 1e3


def score_matrix(scores: Any) -> np.ndarray:
    """Convert scores to an array (rows, labels).

    Args:
        scores: a matrix, dense or sparse; a data frame; or a list of arrays (rows, 2), one for each label, as
            ``predict_proba`` of scikit-learn's forests and of ``MultiOutputClassifier`` returns, with the
            probabilities of the labels in the second columns.

    Raises:
        TypeError: entries are not numbers.
        ValueError: the shape is wrong.
    """
    if isinstance(scores, list | tuple) and scores and np.ndim(scores[0]) == 2:
        parts = [np.asarray(each) for each in scores]
        for label, each in enumerate(parts):
            check_shape(f"scores[{label}]", each, len(parts[0]), 2)
        scores = np.column_stack([each[:, 1] for each in parts])
    given: Any = scores
    found = given.toarray() if sparse.issparse(given) else np.asarray(given)
    if found.dtype.kind not in "biuf":
        try:
            found = found.astype(np.float64)
        except (TypeError, ValueError) as strange:
            raise TypeError(f"scores: expected numbers, got {found.dtype}: {strange}") from None
    check_shape("scores", found, None, None)
    return found.astype(np.float64)


def names_of(scores: Any) -> list[str] | None:
    """Return the column names of a data frame as texts; None if the scores have no column names."""
    columns = getattr(scores, "columns", None)
    return None if columns is None else [str(name) for name in columns]


def log_odds(scores: np.ndarray, kind: str, clip: float, *, is_training: bool = False) -> np.ndarray:
    """Convert scores (rows, labels) to log-odds.

    Args:
        kind: kind of the scores: ``"probabilities"``, ``"logits"`` or ``"log_probabilities"``.
        clip: probabilities are clipped to [clip, 1 − clip], and logits to the logits of these limits.
        is_training: whether to warn if logits look like probabilities.

    Raises:
        ValueError: scores are not finite (except −∞ as a log-probability), or probabilities not in [0, 1].
    """
    if kind == "log_probabilities":
        if (scores > 0).any():
            strange = scores[scores > 0]
            raise ValueError(
                f"scores: expected log-probabilities of at most 0, got {len(strange)} other values such as "
                f"{strange[0]:.6g}; for log-odds set scores='logits'"
            )
        scores, kind = np.exp(scores), "probabilities"
    check_finite("scores", scores)
    if kind == "probabilities":
        strange = scores[(scores < 0) | (scores > 1)]
        if len(strange):
            raise ValueError(
                f"scores: expected probabilities in [0, 1], got {len(strange)} other values such as "
                f"{strange[0]:.6g}; for log-odds set scores='logits'"
            )
        inside = scores.clip(clip, 1 - clip)
        return np.log(inside) - np.log1p(-inside)
    if is_training and ((scores >= 0) & (scores <= 1)).all():
        warnings.warn(
            "scores: expected logits, got only values in [0, 1]; set scores='probabilities' for such values",
            stacklevel=level_of_caller(),
        )
    most = np.log1p(-clip) - np.log(clip)
    return scores.clip(-most, most)


class LabelScorer(ClassifierMixin, BaseEstimator):
    """A wrapper by which any classifier, the base, predicts a matrix of labels.

    The base is fitted to a label matrix in {0, 1}. If the base refuses label matrices, a copy is fitted for
    each label. If labels are missing, a base of this library is given NaN; of any other base, a copy is
    fitted for each label, to the rows where the label is known.

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
        # Catch all errors, because each library raises a different error for label matrices.
        except Exception as refusal:
            try:
                self.fitted_ = LabelByLabel(self.base).fit(X, own, **options)
            except Exception as error:
                raise error from refusal
            self._refuses = True
        return self

    @property
    def kind(self) -> str:
        """The kind of score that :meth:`scores` returns: ``"probabilities"`` or ``"logits"``."""
        return "probabilities" if hasattr(self.fitted_, "predict_proba") else "logits"

    def scores(self, X: Any) -> np.ndarray:
        """Return probabilities (instances, labels), or logits if the base has no probabilities."""
        model, num_labels = cast(Any, self.fitted_), len(self.classes_)
        if self.kind == "probabilities":
            came = model.predict_proba(X)
            came = came if isinstance(came, list | tuple) else score_matrix(came)
            found = positive_probabilities(came, getattr(model, "classes_", None), [1] * num_labels)
            check_shape("base.predict_proba", found, len(found), num_labels)
            return found
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
    """Copies of a classifier, each for one label; a label with only one value in training keeps the value."""

    def __init__(self, base: Any) -> None:
        self.base = base

    def fit(self, X: Any, y: np.ndarray, **options: Any) -> Self:
        """Fit a copy for each column of ``y``, (instances, labels) in {0, 1, NaN}, to the known values."""
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
        """Return a copy fitted to a label, or the label's value if known values are equal (0 if none)."""
        known = ~np.isnan(labels)
        own = labels[known].astype(np.int64)
        if own.min(initial=1) == own.max(initial=0) or not len(own):
            return float(own[0]) if len(own) else 0.0
        # MultiOutputClassifier refuses a single label, so use the classifier inside of it.
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
    """Return a label's scores (instances,): the last column if a classifier returned a matrix."""
    found = np.asarray(came)
    return found if found.ndim == 1 else found[:, -1]
