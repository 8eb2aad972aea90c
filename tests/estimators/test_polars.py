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
    LMBMClassifier,
    LMSBNClassifier,
    LMSBNEnsembleClassifier,
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


def test_names_with_separators_are_saved(tables, tmp_path):
    _, _, features, labels = tables
    fitted = LMSBNClassifier(random_state=0).fit(features, labels)
    fitted.save(tmp_path / "model.safetensors")
    assert load(tmp_path / "model.safetensors").label_names_ == LABELS
    assert [each.name for each in tmp_path.iterdir()] == ["model.safetensors"]
