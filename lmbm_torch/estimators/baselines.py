"""The classifiers that the papers compare with, assembled from scikit-learn's own.

All are linear SVMs with ½‖w‖² + C Σ hinge, the intercept a constant feature that is regularised like the
others: the same objective, the same intercept and the same C as
:class:`lmbm_torch.estimators.LMSBNClassifier`.
"""

from __future__ import annotations

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.multiclass import OneVsRestClassifier
from sklearn.multioutput import ClassifierChain
from sklearn.svm import LinearSVC
from sklearn.utils.validation import check_is_fitted


def linear_svm(C: float = 1.0, random_state: int | None = 0) -> LinearSVC:
    """One binary linear SVM."""
    return LinearSVC(loss="hinge", C=C, tol=1e-3, max_iter=100_000, random_state=random_state)


def independent_svm(C: float = 1.0) -> OneVsRestClassifier:
    """One linear SVM a label, each predicting alone."""
    return OneVsRestClassifier(linear_svm(C))


def classifier_chain(C: float = 1.0, order=None, random_state: int | None = None) -> ClassifierChain:
    """Linear SVMs that see the labels before them, decoded greedily."""
    return ClassifierChain(linear_svm(C), order=order, random_state=random_state)


class LabelPowersetSVM(ClassifierMixin, BaseEstimator):
    """One class per label vector that occurs in training, one linear SVM a class.

    Args:
        C: weight of the losses.
    """

    def __init__(self, C=1.0):
        self.C = C

    def fit(self, X, Y):
        """Learn from features (instances, features) and labels (instances, labels) in {0, 1}."""
        self.labellings_, classes = np.unique(Y, axis=0, return_inverse=True)
        self.svm_ = linear_svm(self.C).fit(X, classes.ravel())
        return self

    def predict(self, X):
        """Labels (instances, labels), one of the label vectors seen in training."""
        check_is_fitted(self)
        return self.labellings_[self.svm_.predict(X)]
