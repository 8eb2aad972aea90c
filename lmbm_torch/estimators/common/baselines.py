"""Baselines of the papers, assembled from scikit-learn's estimators.

All baselines are linear SVMs that minimise ½‖w‖² + C Σ hinge. Except in the label powerset, the intercept is
the weight of a constant feature, regularised like other weights, and the objective and C have the same
meaning as in :class:`lmbm_torch.estimators.LMSBNClassifier`.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self, cast

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse
from sklearn.multiclass import OneVsRestClassifier
from sklearn.multioutput import ClassifierChain
from sklearn.svm import SVC, LinearSVC
from sklearn.utils.validation import check_is_fitted

from lmbm_torch.estimators.common.base import Rows, StructuredClassifier
from lmbm_torch.estimators.common.calls import answer_call, fit_call
from lmbm_torch.estimators.common.kernels import resolved_gamma
from lmbm_torch.estimators.explain.contributions import AnswerFields
from lmbm_torch.estimators.explain.explanations import Answer, Explanation, explanation, without_names
from lmbm_torch.kernels.threads import leavable


def linear_svm(C: float = 1.0, random_state: int | None = 0) -> LinearSVC:
    """Return a binary linear SVM."""
    return LinearSVC(loss="hinge", C=C, tol=1e-3, max_iter=100_000, random_state=random_state)


def independent_svm(C: float = 1.0) -> OneVsRestClassifier:
    """Return a classifier with a linear SVM for each label, or for each class against all other classes."""
    return OneVsRestClassifier(linear_svm(C))


def classifier_chain(C: float = 1.0, order=None, random_state: int | None = None) -> ClassifierChain:
    """Return a chain of linear SVMs that are given earlier labels as features, decoded greedily."""
    return ClassifierChain(linear_svm(C), order=order, random_state=random_state)


@contextmanager
def many_classes() -> Iterator[None]:
    """Suppress scikit-learn's warning of many classes, which are normal if each label set is a class."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The number of unique classes", UserWarning)
        yield


class LabelPowersetSVM(StructuredClassifier):
    """A classifier in which each label set of the training data is a class, with an SVM for each pair.

    SVMs for pairs of classes are better than SVMs for each class against the rest: on Yeast, with 198 label
    sets, exact match is 0.26 against 0.14. scikit-learn's pairwise SVM does not regularise intercepts.

    Args:
        C: weight of the losses.
        kernel, gamma: parameters of scikit-learn's SVC.

    Attributes:
        labellings_: (label sets, labels), the label sets of the training instances.
        classes_: the classes; for label matrices (labels, 2), the two values of each label.
    """

    def __init__(self, C=1.0, *, kernel="linear", gamma="scale"):
        self.C = C
        self.kernel = kernel
        self.gamma = gamma

    @fit_call
    def fit(self, X: Rows, y: Rows, sample_weight: ArrayLike | None = None) -> Self:
        """Train on features (instances, features) and labels (instances, labels) in {0, 1}, or classes."""
        X, labels, sample_weight = self._validate_fit(X, y, sample_weight)
        if sample_weight is not None and not sample_weight.all():
            # Drop instances of weight 0: libsvm refuses data in which only one class has positive weights.
            kept = np.flatnonzero(sample_weight)
            X, labels, sample_weight = cast(Any, X)[kept], labels[kept], sample_weight[kept]
        self.labellings_, labelling = np.unique(labels.astype(np.int64), axis=0, return_inverse=True)
        # Without an SVM the single label set is always predicted: an SVM needs two classes.
        self.svm_ = None
        if len(self.labellings_) > 1:
            # Compute gamma here for sparse features, where scikit-learn's default can be negative.
            gamma: Any = resolved_gamma(self.gamma, X) if sparse.issparse(X) else self.gamma
            svm = SVC(kernel=self.kernel, gamma=gamma, C=self.C)
            with many_classes():
                self.svm_ = leavable(lambda: svm.fit(X, labelling.ravel(), sample_weight))
        return self

    @answer_call
    def explain(self, X: Rows, *, reference: ArrayLike | None = None, num_features: int = 10) -> Explanation:
        """Explain an instance by the labels that change if a feature is set to the mean or ``reference``.

        Args:
            X, reference, num_features: see :meth:`DecodingClassifier.explain`; the explanation has neither
                probabilities nor predictions with a label held fixed.
        """
        check_is_fitted(self)
        X = self._validate_predict(X)
        model = without_names(self)
        fields = AnswerFields(model, model._labels, X, reference)

        def answer(rows: np.ndarray, known: np.ndarray | None) -> Answer:
            return Answer.of(model._labels(rows))

        found = explanation(fields, answer, X, num_features, takes_known=False)
        return found.in_values(self.classes_)

    @answer_call
    def predict(self, X: Rows) -> np.ndarray:
        """Predict for each instance a label set of the training data, (instances, labels), or a class."""
        labels = self._labels(self._validate_predict(X))
        if self.binarizer_ is None:
            return self.label_values(labels)
        return np.asarray(self.binarizer_.inverse_transform(labels))

    def _labels(self, X: Any) -> np.ndarray:
        """Predict labels in {0, 1} for validated instances."""
        labelling = np.zeros(X.shape[0], np.int64) if self.svm_ is None else self.svm_.predict(X)
        return self.labellings_[labelling]
