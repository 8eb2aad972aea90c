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
    """Return an independent linear SVM for each label, or for each class against the rest."""
    return OneVsRestClassifier(linear_svm(C))


def classifier_chain(C: float = 1.0, order=None, random_state: int | None = None) -> ClassifierChain:
    """Return a chain of linear SVMs with earlier labels as features, decoded greedily."""
    return ClassifierChain(linear_svm(C), order=order, random_state=random_state)


@contextmanager
def many_classes() -> Iterator[None]:
    """Suppress scikit-learn's warning of many classes: with one class for each label set, many are normal."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The number of unique classes", UserWarning)
        yield


class LabelPowersetSVM(StructuredClassifier):
    """A classifier with one class per label set of the training data, and one SVM for each pair of classes.

    SVMs for pairs are better than one SVM for each class against all other classes: on Yeast, with 198 label
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
        # An SVM needs two classes; a single class is always predicted.
        self.svm_ = None
        if len(self.labellings_) > 1:
            # scikit-learn's default gamma can be negative for sparse features of small variance.
            gamma: Any = resolved_gamma(self.gamma, X) if sparse.issparse(X) else self.gamma
            svm = SVC(kernel=self.kernel, gamma=gamma, C=self.C)
            with many_classes():
                self.svm_ = leavable(lambda: svm.fit(X, labelling.ravel(), sample_weight))
        return self

    @answer_call
    def explain(self, X: Rows, *, reference: ArrayLike | None = None, num_features: int = 10) -> Explanation:
        """Return the answers that change if a feature is set to the training mean, or to ``reference``.

        Args:
            X, reference, num_features: see :meth:`DecodingClassifier.explain`; the explanation has no
                probabilities, and no answers with one label held fixed.
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
        """Return for each instance a label set of the training data (instances, labels), or a class."""
        labels = self._labels(self._validate_predict(X))
        if self.binarizer_ is None:
            return self.label_values(labels)
        return np.asarray(self.binarizer_.inverse_transform(labels))

    def _labels(self, X: Any) -> np.ndarray:
        """Return the labels of validated instances, in {0, 1}."""
        labelling = np.zeros(X.shape[0], np.int64) if self.svm_ is None else self.svm_.predict(X)
        return self.labellings_[labelling]
