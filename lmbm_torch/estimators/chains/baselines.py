"""Baselines of chains, assembled from scikit-learn's estimators: independent positions, and the MEMM."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from scipy import sparse
from sklearn.base import BaseEstimator, clone
from sklearn.linear_model import LogisticRegression
from sklearn.multiclass import OneVsRestClassifier

from lmbm_torch.energies import ChainEnergy
from lmbm_torch.estimators.baselines import linear_svm
from lmbm_torch.estimators.chains.base import (
    ProbabilisticSequenceClassifier,
    Rows,
    SequenceClassifier,
    by_position,
)
from lmbm_torch.estimators.settings import RELATIVE_PENALTY, SHARED, Constraints


class IndependentPositions(SequenceClassifier):
    """Any classifier, applied to each position separately: no transitions.

    Args:
        classifier: has a ``decision_function`` with one score per class, such as :func:`one_vs_rest_svm`'s or
            :class:`~lmbm_torch.estimators.MultiClassSVM`.

    Attributes:
        classifier_: as fitted; classes_: the classes.
    """

    # Of the classifier, whatever that has.
    device = "cpu"

    def __init__(self, classifier: BaseEstimator):
        self.classifier = classifier

    def fit(self, X, y):
        """Learn from the positions of sequences (length, features) and their classes (length,)."""
        rows, codes = self._validate_fit(X, y)
        self.classifier_ = clone(self.classifier).fit(rows.features, codes)  # pyright: ignore
        return self

    def _energy(self, rows: Rows) -> ChainEnergy:
        scores = self.classifier_.decision_function(rows.features)
        if scores.ndim == 1:
            scores = np.column_stack([-scores, scores])
        return self._chains(scores, np.zeros((len(self.classes_),) * 2), rows)


def one_vs_rest_svm(C: float = 1.0) -> OneVsRestClassifier:
    """One linear SVM for each class against the others (survey, Equation 31)."""
    return OneVsRestClassifier(linear_svm(C))


class MaximumEntropyMarkovClassifier(ProbabilisticSequenceClassifier):
    """Logistic regression on a position's features and the class before it, decoded jointly (MEMM).

    McCallum, Freitag and Pereira (ICML 2000). The intercept is a constant feature, regularised like others.

    Args:
        C: weight of the losses, a number; or ``"scale"``: 1 for features in units of the root of the mean of
            ‖x‖², each column in units of its own, see
            :mod:`~lmbm_torch.estimators.feature_units`. The weights are those of X.
        max_iter: of logistic regression.
        device: where predictions but for linear scores are computed, such as ``"cpu"`` or ``"cuda"``.

    Attributes:
        classes_: the classes; n_features_in_: of a position.
        C_: the weight of the losses; feature_shift_, feature_scale_: (features,), training is on
            (X − shift) / scale; 0 and 1 for a number C.
        coef_: (classes, features); intercept_: (classes,).
        transition_: (classes, classes), from row to column, before each row of scores is normalised.
    """

    _parameter_constraints: ClassVar[Constraints] = {**SHARED, "C": RELATIVE_PENALTY}

    def __init__(self, C: float | str = 1.0, *, max_iter=1000, device="cpu"):
        self.C = C
        self.max_iter = max_iter
        self.device = device

    def fit(self, X, y, sample_weight=None):
        """Learn from sequences (length, features) and their positions' classes (length,).

        Args:
            sample_weight: (sequences,), multiplies C.

        Raises:
            ValueError: an input that is not as described; the message names it.
        """
        rows, codes = self._validate_fit(X, y)
        before = np.roll(np.eye(len(self.classes_))[codes], 1, axis=0)
        before[rows.start[:-1]] = 0
        weights = by_position(self._weights(sample_weight, rows.start[1:]), rows.start)
        parts = [self._scaled(rows.features, weights), np.ones((len(codes), 1)), before]
        stacked = sparse.hstack(parts, "csr") if sparse.issparse(rows.features) else np.hstack(parts)
        regression = LogisticRegression(C=self.C_, fit_intercept=False, max_iter=self.max_iter)
        coef = regression.fit(stacked, codes, weights).coef_
        width, count = self.n_features_in_, len(self.classes_)
        # For two classes scikit-learn keeps only the difference of their weights.
        coef = coef if len(coef) == count else np.vstack([np.zeros_like(coef), coef])
        self.coef_, self.intercept_ = self._of_features(coef[:, :width], coef[:, width])
        self.transition_ = coef[:, width + 1 :].T.copy()
        return self

    def _energy(self, rows: Rows) -> ChainEnergy:
        scores = rows.features @ self.coef_.T + self.intercept_
        return self._chains(scores, self.transition_, rows).locally_normalised()
