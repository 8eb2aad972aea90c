"""Targets as scikit-learn hands them in, and as the {0, 1} label matrices of the library."""

from __future__ import annotations

import numpy as np
from scipy import sparse
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.preprocessing import LabelBinarizer
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    _check_sample_weight,
    _num_samples,
    check_is_fitted,
    column_or_1d,
    validate_data,
)

from lmbm_torch.checks import check_labels, check_shape
from lmbm_torch.solvers.label_problems import Features


class StructuredClassifier(ClassifierMixin, BaseEstimator):
    """A classifier of label vectors, which also takes one label or one class per instance.

    ``Y`` is a matrix in {0, 1} with NaN for what is unknown. A one-dimensional ``y`` becomes one column for
    two classes, and one column a class for more.
    """

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.target_tags.multi_output = True
        tags.classifier_tags.multi_label = True
        return tags

    def _validate_fit(self, X, Y, sample_weight) -> tuple[Features, np.ndarray, np.ndarray | None]:
        """Features, the label matrix and the sample weights; notes the classes."""
        X = _rows(validate_data(self, X, accept_sparse="csr", dtype=[np.float64, np.float32]))
        if Y is None:
            raise ValueError(f"{type(self).__name__} requires y to be passed, but the target y is None")
        labels = self._encode(Y)
        check_shape("Y", labels, _num_samples(X), None)
        if sample_weight is not None:
            sample_weight = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        return X, labels, sample_weight

    def _validate_predict(self, X) -> Features:
        check_is_fitted(self)
        return _rows(validate_data(self, X, accept_sparse="csr", dtype=[np.float64, np.float32], reset=False))

    def _encode(self, Y) -> np.ndarray:
        Y = Y.toarray() if sparse.issparse(Y) else np.asarray(Y)
        if Y.ndim == 2 and (Y.shape[1] > 1 or _is_binary(Y)):
            labels = Y.astype(np.float64)
            check_labels("Y", labels, allow_missing=True)
            self.binarizer_ = None
            self.classes_ = [np.array([0, 1]) for _ in range(labels.shape[1])]
            return labels
        y = column_or_1d(Y)
        check_classification_targets(y)
        self.binarizer_ = LabelBinarizer().fit(y)
        self.classes_ = self.binarizer_.classes_
        return self.binarizer_.transform(y).astype(np.float64)


def _rows(X) -> Features:
    return sparse.csr_array(X) if sparse.issparse(X) else X


def _is_binary(Y: np.ndarray) -> bool:
    return np.issubdtype(Y.dtype, np.number) and bool(((Y == 0) | (Y == 1) | (Y != Y)).all())
