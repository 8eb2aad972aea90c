"""Targets as scikit-learn hands them in, and as the {0, 1} label matrices of the library."""

from __future__ import annotations

import warnings
from os import PathLike
from typing import Any, Literal

import numpy as np
import torch
from scipy import sparse
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.preprocessing import LabelBinarizer
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    _check_sample_weight,
    _num_samples,
    check_is_fitted,
    column_or_1d,
    validate_data,
)

from lmbm_torch.checks import check_finite, check_labels, check_shape
from lmbm_torch.data.features import numbered
from lmbm_torch.data.tables import schema
from lmbm_torch.data.tables.sources import open_table
from lmbm_torch.solvers.networks.problems import Features


class StructuredClassifier(ClassifierMixin, BaseEstimator):
    """A classifier of label vectors, which also takes one label or one class per instance.

    The targets ``y`` of ``fit`` are a matrix in {0, 1} with NaN for what is unknown, or a data frame of such
    columns, whose names are kept. One-dimensional ones become one column for two classes (or one), and one
    column a class for more.

    Attributes:
        label_names_: of label matrices, those of a data frame's columns, else label_0, label_1, …; None where
            ``fit`` was given classes.
    """

    label_names_: tuple[str, ...] | None

    def predict_names(self, X) -> list[tuple[str, ...]]:
        """The names of the labels that each instance is predicted to have.

        Raises:
            ValueError: ``fit`` was given classes, which :meth:`predict` names.
        """
        check_is_fitted(self)
        names = self.label_names_
        if names is None:
            raise ValueError("label_names_: expected names of labels, but fit was given classes; see predict")
        predicted: Any = self
        return [
            tuple(name for name, on in zip(names, row, strict=True) if on)
            for row in predicted.predict(X).tolist()
        ]

    def save(self, path: str | PathLike, mode: Literal["x", "w"] = "x") -> None:
        """As :func:`lmbm_torch.estimators.save`."""
        # What is saved is every kind of estimator, which all build on this module.
        from lmbm_torch.estimators import saving

        saving.save(self, path, mode)

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.target_tags.multi_output = True
        tags.classifier_tags.multi_label = True
        return tags

    def _validate_fit(self, X, y, sample_weight) -> tuple[Features, np.ndarray, np.ndarray | None]:
        """Features, the label matrix and the sample weights; notes the classes."""
        X = _rows(validate_data(self, X, accept_sparse="csr", dtype=[np.float64, np.float32]))
        if y is None:
            raise ValueError(f"{type(self).__name__} requires y to be passed, but the target y is None")
        labels = self._encode(y)
        check_shape("y", labels, _num_samples(X), None)
        if sample_weight is not None:
            sample_weight = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        return X, labels, sample_weight

    def _validate_predict(self, X) -> Features:
        check_is_fitted(self)
        return _rows(validate_data(self, X, accept_sparse="csr", dtype=[np.float64, np.float32], reset=False))

    def _encode(self, y) -> np.ndarray:
        names = [str(name) for name in y.columns] if hasattr(y, "columns") else None
        y = _array(y)
        if y.ndim == 2 and (y.shape[1] > 1 or _is_binary(y)):
            labels = label_matrix("y", y, allow_missing=True)
            self.label_names_ = numbered("label", labels.shape[1]) if names is None else tuple(names)
            self.binarizer_ = None
            self.classes_ = [np.array([0, 1]) for _ in range(labels.shape[1])]
            return labels
        self.label_names_ = None
        y = column_or_1d(y)
        if np.issubdtype(y.dtype, np.floating):
            check_finite("y", y)
        check_classification_targets(y)
        self.binarizer_ = LabelBinarizer().fit(y)
        self.classes_ = self.binarizer_.classes_
        return self.binarizer_.transform(y).astype(np.float64)


def label_matrix(name: str, labels, *, allow_missing: bool) -> np.ndarray:
    """Labels as float64; refuses what is not 0 or 1 (or NaN, where that is allowed)."""
    labels = _array(labels)
    if labels.dtype == object:
        try:
            labels = labels.astype(np.float64)
        except (TypeError, ValueError) as strange:
            raise TypeError(f"{name}: expected numbers: {strange}") from None
    check_labels(name, labels, allow_missing=allow_missing)
    return labels.astype(np.float64)


def warn_unless_reached(
    estimator: Any, limit: str, reached: float, measure: str = "relative duality gap"
) -> None:
    """Warn the caller of ``fit`` if the ``measure`` that training ``reached`` is above the setting ``tol``.

    ``limit`` is the name of the setting that ended it.
    """
    if not reached <= estimator.tol:
        warnings.warn(
            f"{type(estimator).__name__}: training ended at {limit}={getattr(estimator, limit)} with a "
            f"{measure} of {reached:.2g}, above tol={estimator.tol}; raise {limit} or tol, or scale X",
            ConvergenceWarning,
            stacklevel=3,
        )


def available_device(device: str) -> torch.device:
    """The device by its name; found out before the training, not after it."""
    try:
        return torch.empty(0, device=device).device
    except (RuntimeError, AssertionError) as missing:
        raise ValueError(f"device: expected one that torch can use here, got {device!r}: {missing}") from None


def _rows(X) -> Features:
    return sparse.csr_array(X) if sparse.issparse(X) else X


def _array(labels) -> np.ndarray:
    """Sparse ones made dense, and data frames by what their values mean; a single column may be classes."""
    if hasattr(labels, "columns") and labels.shape[1] > 1:
        table = open_table(labels)
        return schema.label_matrix(table, list(table.columns))
    return labels.toarray() if sparse.issparse(labels) else np.asarray(labels)


def _is_binary(y: np.ndarray) -> bool:
    return np.issubdtype(y.dtype, np.number) and bool(((y == 0) | (y == 1) | (y != y)).all())
