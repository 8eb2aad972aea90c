"""Frames of polars train and predict as arrays do, with their names."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression

from lmbm_torch import load
from lmbm_torch.estimators import (
    ConditionalRBMClassifier,
    ConformalClassifier,
    ConstrainedClassifier,
    IndependentLabelsClassifier,
    KernelLogisticRegression,
    LMBMClassifier,
    LMSBNClassifier,
    LMSBNEnsembleClassifier,
    MultiClassSVM,
    ProbabilisticClassifierChain,
    StructuralSVMClassifier,
    ThresholdTunedClassifier,
)

pl = pytest.importorskip("polars", reason="polars is not installed")

# Nothing is to be written where such a name leads.
LABELS = ("a/b", "..\\c", "../../d")
ESTIMATORS = (
    LMSBNClassifier(random_state=0),
    LMSBNEnsembleClassifier(random_state=0),
    LMBMClassifier(random_state=0),
    StructuralSVMClassifier(random_state=0),
    ConditionalRBMClassifier(random_state=0),
    ProbabilisticClassifierChain(LogisticRegression()),
    ThresholdTunedClassifier(LMSBNClassifier(random_state=0)),
)


@pytest.fixture(scope="module")
def tables():
    generator = np.random.default_rng(0)
    X = generator.normal(size=(60, 3))
    Y = (X @ generator.normal(size=(3, 3)) > 0).astype(int)
    frames = (
        pl.DataFrame(dict(zip("xyz", X.T, strict=True))),
        pl.DataFrame(dict(zip(LABELS, Y.T, strict=True))),
    )
    return X, Y, *frames


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda each: type(each).__name__)
def test_frames_are_as_good_as_arrays(estimator, tables):
    X, Y, features, labels = tables
    expected = clone(estimator).fit(X, Y).predict(X)
    fitted = clone(estimator).fit(features, labels)
    np.testing.assert_array_equal(fitted.predict(features), expected)
    assert tuple(fitted.label_names_) == LABELS
    assert list(fitted.feature_names_in_) == ["x", "y", "z"]
    again = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(again.predict(features), expected)
    with pytest.raises(ValueError, match="feature names"):
        fitted.predict(features.rename({"x": "other"}))


WRAPPERS = (
    ConformalClassifier(LMSBNClassifier(random_state=0), random_state=0),
    ConstrainedClassifier(LMBMClassifier(random_state=0)),
    IndependentLabelsClassifier(LogisticRegression()),
)


@pytest.mark.parametrize("estimator", WRAPPERS, ids=lambda each: type(each).__name__)
def test_wrappers_take_frames_and_keep_names(estimator, tables):
    X, Y, features, labels = tables
    fitted = clone(estimator).fit(features, labels)
    np.testing.assert_array_equal(fitted.predict(features), clone(estimator).fit(X, Y).predict(X))
    assert tuple(fitted.label_names_) == LABELS
    with pytest.raises(ValueError, match="feature names"):
        fitted.predict(features.rename({"x": "other"}))


@pytest.mark.parametrize("estimator", [MultiClassSVM(), KernelLogisticRegression()], ids=repr)
def test_a_series_holds_classes(estimator, tables):
    X, Y, features, _ = tables
    classes = np.array(["low", "high"])[Y[:, 0]]
    expected = clone(estimator).fit(X, classes).predict(X)
    fitted = clone(estimator).fit(features, pl.Series("target", classes))
    np.testing.assert_array_equal(fitted.predict(features), expected)


@pytest.mark.parametrize(
    "estimator",
    [*(each for each in ESTIMATORS if not isinstance(each, ThresholdTunedClassifier)), *WRAPPERS[1:]],
    ids=lambda each: type(each).__name__,
)
def test_known_labels_are_a_frame_in_the_order_of_training(estimator, tables):
    _, Y, features, labels = tables
    fitted = clone(estimator).fit(features, labels)
    opposite = pl.Series(LABELS[0], 1 - Y[:, 0])
    known = labels.with_columns(opposite, *(pl.lit(None, pl.Int64).alias(name) for name in LABELS[1:]))
    given = np.column_stack([1.0 - Y[:, 0], np.full((len(Y), 2), np.nan)])
    found = fitted.predict(features, known=known)
    np.testing.assert_array_equal(found[:, 0], opposite)
    np.testing.assert_array_equal(found, fitted.predict(features, known=given))
    with pytest.raises(ValueError, match="labels: expected columns in the order of fit"):
        fitted.predict(features, known=known.select(LABELS[::-1]))


def test_names_with_separators_are_saved(tables, tmp_path):
    _, _, features, labels = tables
    fitted = LMSBNClassifier(random_state=0).fit(features, labels)
    fitted.save(tmp_path / "model.safetensors")
    assert load(tmp_path / "model.safetensors").label_names_ == LABELS
    assert [each.name for each in tmp_path.iterdir()] == ["model.safetensors"]
