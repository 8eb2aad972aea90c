"""The classifier around any base: how often it fits and asks the base, and what it passes on."""

from __future__ import annotations

from typing import Any, ClassVar, cast

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.dummy import DummyClassifier
from sklearn.ensemble import ExtraTreesClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GroupKFold, KFold, ShuffleSplit, TimeSeriesSplit, cross_val_predict
from sklearn.multioutput import MultiOutputClassifier
from sklearn.pipeline import make_pipeline
from sklearn.svm import LinearSVC
from sklearn.utils.estimator_checks import parametrize_with_checks

from lmbm_torch import load
from lmbm_torch.estimators import JointClassifier, JointHead, LMSBNClassifier

HEAD = JointHead(cv=2, structure="cardinality")


class InContext(ClassifierMixin, BaseEstimator):
    """A stub of a foundation model: its fit keeps the rows, and its answers look at all of them, slowly."""

    calls: ClassVar[list[tuple[str, int]]] = []
    weights: ClassVar[list[np.ndarray | None]] = []

    def fit(self, X: np.ndarray, y: np.ndarray, sample_weight: np.ndarray | None = None) -> InContext:
        self.calls.append(("fit", len(X)))
        self.weights.append(sample_weight)
        self.rows_, self.labels_ = X, y
        return self

    def predict_proba(self, X: np.ndarray) -> np.ndarray:
        self.calls.append(("predict_proba", len(X)))
        distance = ((X[:, None] - self.rows_) ** 2).sum(-1)
        near = np.exp(-2 * distance)
        return (near @ self.labels_ + 0.1) / (near.sum(1, keepdims=True) + 0.2)


@pytest.fixture(autouse=True)
def no_calls() -> None:
    InContext.calls.clear()
    InContext.weights.clear()


def data(rows: int = 120, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    X = random.normal(size=(rows, 3))
    Y = (X @ np.random.default_rng(9).normal(size=(3, 4)) + random.normal(size=(rows, 4)) > 0.5).astype(int)
    return X, Y


def classifier(base: Any, **settings: Any) -> JointClassifier:
    return JointClassifier(base, HEAD, **{"cv": 2, "random_state": 0, **settings})


def test_a_foundation_model_is_fitted_once_a_fold_and_once_more():
    X, Y = data()
    model = classifier(InContext(), cv=4).fit(X, Y)
    assert [rows for name, rows in InContext.calls if name == "fit"] == [90, 90, 90, 90, 120]
    assert [rows for name, rows in InContext.calls if name == "predict_proba"] == [30, 30, 30, 30]
    InContext.calls.clear()
    model.predict(X[:7])
    assert InContext.calls == [("predict_proba", 7)]


def test_the_head_learns_from_scores_of_rows_held_out():
    X, Y = data()
    base, folds = MultiOutputClassifier(LogisticRegression()), KFold(3)
    model = classifier(base, cv=folds).fit(X, Y)
    scores = np.stack(
        [each[:, 1] for each in cross_val_predict(base, X, Y, cv=folds, method="predict_proba")], 1
    )
    expected = cast(Any, clone(HEAD)).set_params(random_state=model.head_.random_state).fit(scores, Y)
    np.testing.assert_allclose(model.head_.slope_, expected.slope_)
    np.testing.assert_allclose(model.head_.count_weight_, expected.count_weight_)
    np.testing.assert_array_equal(model.predict(X), model.head_.predict(model.base_scores(X)))
    np.testing.assert_array_equal(model.log_prob(X, Y), model.head_.log_prob(model.base_scores(X), Y))


@pytest.mark.parametrize(
    "base",
    [
        LogisticRegression(),
        MultiOutputClassifier(LogisticRegression()),
        ExtraTreesClassifier(10, random_state=0),
        make_pipeline(LogisticRegression()),
        LinearSVC(),
    ],
    ids=["label by label", "wrapped", "lists", "pipeline", "logits"],
)
def test_bases_of_all_kinds_are_taken(base):
    X, Y = data()
    Y[:, 3] = 0
    Y[0, 3] = 1
    model = classifier(base).fit(X, Y)
    assert model.predict(X).shape == Y.shape
    assert model.head_.scores == ("logits" if isinstance(base, LinearSVC) else "probabilities")
    assert model.score(X, Y) > 0.2
    assert (model.decode(X[:3], top_k=2).objective.diff(dim=1) <= 0).all()


def test_frames_and_sparse_rows_are_passed_on():
    X, Y = data()
    columns, labels = ["u", "v", "w"], pd.DataFrame(Y, columns=["a", "b", "c", "d"])
    expected = classifier(LogisticRegression()).fit(X, Y)
    frames = classifier(LogisticRegression()).fit(pd.DataFrame(X, columns=columns), labels)
    assert frames.label_names_ == ("a", "b", "c", "d")
    assert frames.feature_names_in_.tolist() == columns
    rows = pd.DataFrame(X[:9], columns=columns)
    np.testing.assert_allclose(frames.predict_proba(rows), expected.predict_proba(X[:9]))
    names = [tuple(labels.columns[row == 1]) for row in expected.predict(X[:9])]
    assert frames.predict_names(rows) == names
    found = classifier(LogisticRegression()).fit(sparse.csr_array(X), Y)
    np.testing.assert_allclose(found.predict_proba(sparse.csr_array(X)), expected.predict_proba(X), atol=1e-3)


def test_weights_and_groups_are_passed_on():
    X, Y = data()
    weights, groups = np.linspace(0.1, 1, 120), np.arange(120) // 10
    classifier(InContext(), cv=GroupKFold(3)).fit(X, Y, sample_weight=weights, groups=groups)
    for given in InContext.weights[:-1]:
        assert given is not None
        kept = np.isin(weights, given)
        assert kept.sum() == len(given)
        assert not set(groups[kept]) & set(groups[~kept])
    np.testing.assert_array_equal(InContext.weights[-1], weights)


@pytest.mark.parametrize("cv", [TimeSeriesSplit(3), ShuffleSplit(2, random_state=0)])
def test_rows_that_no_fold_holds_out_are_not_for_the_head(cv, monkeypatch):
    X, Y = data()
    seen = []
    fit = JointHead.fit
    monkeypatch.setattr(
        JointHead, "fit", lambda self, scores, *more: seen.append(scores) or fit(self, scores, *more)
    )
    classifier(InContext(), cv=cv).fit(X, Y)
    (scores,) = seen
    assert len(scores) == len(set(np.concatenate([test for _, test in cv.split(X)])))
    assert np.isfinite(scores).all()


def test_recalibration_changes_the_head_alone():
    X, Y = data()
    model = classifier(InContext()).fit(X, Y)
    before, base = model.head_, model.base_
    InContext.calls.clear()
    model.recalibrate(*data(80, 5))
    assert InContext.calls == [("predict_proba", 80)]
    assert model.base_ is base
    assert model.head_ is not before
    assert not np.allclose(model.head_.slope_, before.slope_)


def test_the_head_is_saved_without_its_base(tmp_path):
    X, Y = data()
    model = classifier(InContext()).fit(X, Y)
    with pytest.raises(TypeError, match="expected no classifiers of other libraries"):
        model.save(tmp_path / "model.safetensors")
    model.head_.save(tmp_path / "head.safetensors")
    head: Any = load(tmp_path / "head.safetensors")
    np.testing.assert_array_equal(head.predict(model.base_scores(X)), model.predict(X))


def test_a_base_is_fitted_to_the_rows_with_a_known_label():
    X, Y = data()
    hidden = np.where(np.random.default_rng(0).random(Y.shape) < 0.3, np.nan, Y)
    hidden[:, 3] = np.where(np.arange(120) < 118, np.nan, Y[:, 3])
    sizes = []

    class Single(LogisticRegression):
        def fit(self, X, y, sample_weight=None):
            sizes.append(len(X))
            assert set(y) == {0, 1}
            return super().fit(X, y, sample_weight)

    weights = np.linspace(0.1, 1, 120)
    model = classifier(Single(), cv=KFold(2)).fit(X, hidden, sample_weight=weights)
    known = ~np.isnan(hidden[:, :3])
    assert sizes == [*known[60:].sum(0), *known[:60].sum(0), *known.sum(0)]
    assert model.score(X, Y) > 0.1
    assert model.score(X, hidden) > model.score(X, Y)


def test_a_base_of_this_library_sees_missing_labels():
    X, Y = data()
    hidden = np.where(np.random.default_rng(0).random(Y.shape) < 0.3, np.nan, Y)
    model = classifier(LMSBNClassifier(calibrate=True)).fit(X, hidden)
    assert isinstance(model.base_, LMSBNClassifier)
    assert model.score(X, Y) > 0.2


def test_what_the_base_refuses_is_refused():
    X, Y = data()
    X[0, 0] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        classifier(LogisticRegression()).fit(X, Y)
    with pytest.raises(ValueError, match="base"):
        JointClassifier(3).fit(X, Y)


def test_a_base_that_says_nothing_leaves_the_frequencies():
    X, Y = data()
    model = classifier(DummyClassifier(strategy="prior")).fit(X, Y)
    np.testing.assert_allclose(model.predict_proba(X[:2]).mean(0), Y.mean(0), atol=0.1)


# With a metric of its own a rule may answer, which need not agree with the probabilities of a single label.
@parametrize_with_checks(
    [
        JointClassifier(
            LogisticRegression(),
            JointHead("log_loss", cv=2, structure="cardinality"),
            cv=2,
            random_state=0,
        )
    ]
)
def test_scikit_learn_s_check(estimator, check):
    check(estimator)
