"""Labels in the values of their owner: numbers, texts, categories and missing values, in all methods."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GroupKFold, KFold, cross_val_score
from strategies.label_problems import random_inputs

from lmbm_torch.estimators import (
    AutoLabelClassifier,
    ConditionalRBMClassifier,
    ConstrainedClassifier,
    JointClassifier,
    LMBMClassifier,
    LMSBNClassifier,
    LMSBNClassifierCV,
    LMSBNEnsembleClassifier,
    ProbabilisticClassifierChain,
    StructuralSVMClassifier,
    ThresholdTunedClassifier,
)
from lmbm_torch.estimators.common.targets import exact_match

X, LABELS = random_inputs(0, 60, 3, 3)
Y = LABELS.astype(int)
WORDS = np.where(Y == 1, "yes", "no").astype(object)
NETWORK = LMSBNClassifier(random_state=0)
CHAIN = ProbabilisticClassifierChain(LogisticRegression())
JOINT = JointClassifier(LogisticRegression(), cv=2, random_state=0)
ESTIMATORS = {
    "network": NETWORK,
    "machine": LMBMClassifier(),
    "structural": StructuralSVMClassifier(tol=0.1, random_state=0),
    "hidden units": ConditionalRBMClassifier(max_iter=3, tol=1e9, random_state=0),
    "ensemble": LMSBNEnsembleClassifier(num_members=2, random_state=0),
    "chain": CHAIN,
    "rules": ConstrainedClassifier(LMSBNClassifier(random_state=0), ["label_0 or not label_0"]),
    "own rules": LMSBNEnsembleClassifier(num_members=2, random_state=0, constraints=["label_0 or label_1"]),
    "penalties": LMSBNClassifierCV(Cs=2, cv=2, random_state=0),
    "thresholds": ThresholdTunedClassifier(cv=2, random_state=0),
    "joint": JOINT,
}
OTHERS = [(-1, 0), ("no", "yes")]


def spoken(labels: np.ndarray, values: tuple[Any, Any]) -> np.ndarray:
    """Labels of {0, 1, NaN} in other values."""
    kind = object if isinstance(values[0], str) else float
    found = np.where(labels == 1, values[1], values[0]).astype(kind)
    found[np.isnan(labels)] = None if kind is object else np.nan
    return found


@pytest.mark.parametrize(
    ("name", "values"),
    [(name, (1, 2)) for name in ESTIMATORS]
    + [(name, values) for name in ("network", "own rules", "chain", "joint") for values in OTHERS],
)
def test_all_methods_speak_the_values_of_fit(name, values):
    plain = cast(Any, clone(ESTIMATORS[name])).fit(X, Y)
    other = cast(Any, clone(ESTIMATORS[name])).fit(X, spoken(Y.astype(float), values))
    known = np.full((8, 3), np.nan)
    known[::2, 0], known[1::3, 2] = 1, 0
    expected = plain.decode(X[:8], known=known)
    found = other.decode(X[:8], known=spoken(known, values))
    np.testing.assert_array_equal(found.labels, expected.labels)
    np.testing.assert_allclose(found.objective, expected.objective)
    np.testing.assert_array_equal(other.label_values(found.labels), spoken(expected.labels.numpy(), values))
    np.testing.assert_array_equal(other.predict(X), spoken(plain.predict(X), values))
    assert other.score(X, spoken(Y.astype(float), values)) == plain.score(X, Y)
    for method in ("log_prob", "predict_proba"):
        if hasattr(plain, method):
            given = (X, spoken(Y.astype(float), values)) if method == "log_prob" else (X,)
            expected = getattr(plain, method)(*((X, Y) if method == "log_prob" else (X,)))
            np.testing.assert_allclose(getattr(other, method)(*given), expected)
    if hasattr(plain, "decision_function") and name != "ensemble":
        np.testing.assert_allclose(other.decision_function(X[:3]), plain.decision_function(X[:3]))


@pytest.mark.parametrize("name", sorted({*ESTIMATORS} - {"joint"}))
def test_explanations_speak_the_values_of_fit(name):
    plain = cast(Any, clone(ESTIMATORS[name])).fit(X, Y).explain(X[:1])
    other = cast(Any, clone(ESTIMATORS[name])).fit(X, WORDS).explain(X[:1])
    words = {0: "no", 1: "yes"}
    for label in plain:
        assert other[label].value == words[plain[label].value]
        assert other[label].other == words[1 - plain[label].value]
        assert other[label].field == pytest.approx(plain[label].field)
        changed = plain[label].otherwise
        assert other[label].otherwise == (changed and {each: words[to] for each, to in changed.items()})
    assert other.by_feature == {
        feature: {label: words[to] for label, to in changed.items()}
        for feature, changed in plain.by_feature.items()
    }
    assert f"label_0 = {other['label_0'].value}" in str(other)


@pytest.mark.parametrize("name", ["network", "chain", "joint"])
def test_other_values_than_those_of_fit_are_refused(name):
    model = cast(Any, clone(ESTIMATORS[name])).fit(X, Y + 1)
    with pytest.raises(ValueError, match=r"known: expected .*[1-2].*, got .*0"):
        model.decode(X, known=Y)
    with pytest.raises(ValueError, match="Y: expected"):
        model.log_prob(X, Y)


@pytest.mark.parametrize("name", ["network", "chain", "joint"])
def test_a_fold_without_a_word_has_the_words_of_the_other_labels(name):
    words = WORDS.copy()
    words[20:, 2] = "no"
    words[:20, 2] = "yes"
    found = cross_val_score(cast(Any, clone(ESTIMATORS[name])), X, words, cv=KFold(3), error_score="raise")
    assert np.isfinite(found).all()
    model = cast(Any, clone(ESTIMATORS[name])).fit(X[20:], words[20:])
    assert np.asarray(model.classes_).tolist() == [["no", "yes"]] * 3
    assert set(model.predict(X)[:, 2]) == {"no"}
    assert model.predict_proba(X).shape == (60, 3)


@pytest.mark.parametrize("name", ["network", "chain", "joint"])
def test_a_single_word_alone_is_always_predicted(name):
    words = np.stack([*np.where(Y == 1, "big", "small").T[:2], np.full(60, "red")], 1).astype(object)
    model = cast(Any, clone(ESTIMATORS[name])).fit(X, words)
    assert set(model.predict(X)[:, 2]) == {"red"}
    assert model.predict_proba(X).shape == (60, 3)
    if name != "chain":
        assert all("label_2" not in each for each in model.predict_names(X))


@pytest.mark.parametrize("name", ["network", "chain", "joint"])
def test_declared_categories_count(name):
    kind = pd.CategoricalDtype(["low", "high"], ordered=True)
    frame = pd.DataFrame(np.where(Y == 1, "high", "low"), columns=["a", "b", "c"]).astype(kind)
    frame["c"] = pd.Series(["low"] * 60).astype(kind)
    model = cast(Any, clone(ESTIMATORS[name])).fit(X, frame)
    assert np.asarray(model.classes_).tolist() == [["low", "high"]] * 3
    plain = cast(Any, clone(ESTIMATORS[name])).fit(X, np.where(np.arange(3) == 2, 0, Y))
    np.testing.assert_array_equal(model.predict(X) == "high", plain.predict(X) == 1)


def test_three_words_of_a_label_are_refused_by_classifiers_of_two_values():
    with pytest.raises(ValueError, match="y: expected two values of label 0, got 3"):
        NETWORK.fit(X, np.where(np.arange(60)[:, None] == 0, "maybe", WORDS))


@pytest.mark.parametrize("missing", [None, np.nan, pd.NA], ids=["None", "NaN", "NA"])
@pytest.mark.parametrize("form", [np.asarray, pd.DataFrame], ids=["array", "frame"])
@pytest.mark.parametrize("name", ["network", "chain"])
def test_words_may_miss_in_any_way(name, form, missing):
    words, numbers = WORDS.copy(), Y.astype(object)
    words[0], numbers[0] = missing, missing
    model = cast(Any, clone(ESTIMATORS[name])).fit(X, form(words))
    assert set(model.predict(X).ravel()) <= {"no", "yes"}
    assert model.score(X, form(words)) == pytest.approx(model.score(X[1:], words[1:]))
    of_numbers = cast(Any, clone(ESTIMATORS[name])).fit(X, form(numbers))
    np.testing.assert_array_equal(of_numbers.predict(X) == 1, model.predict(X) == "yes")


@pytest.mark.parametrize("column", [pd.Series, lambda words: pd.DataFrame({"wine": words})])
def test_words_that_miss_in_a_single_column_are_refused_with_the_way_out(column):
    features = np.arange(12.0)[:, None]
    with pytest.raises(
        ValueError, match=r"expected a class for each instance, got 3 missing; .* a data frame"
    ):
        LMSBNClassifier().fit(features, column(["yes", "no", None, "no"] * 3))
    labels = pd.DataFrame({"wine": [1, 0, None, 0] * 3})
    assert set(LMSBNClassifier().fit(features, labels).predict(features).ravel()) <= {0, 1}


def test_a_label_that_no_row_knows_is_absent_everywhere():
    labels = Y.astype(float)
    labels[:, 1] = np.nan
    for model in (NETWORK, LMBMClassifier(), AutoLabelClassifier(families=["network"], cv=2, time_budget=1)):
        with pytest.warns(UserWarning, match="got only missing values of label_1; the value 0"):
            model.fit(X, labels)
        assert not model.predict(X)[:, 1].any()


@pytest.mark.parametrize("name", ["network", "machine", "chain", "joint"])
def test_frames_of_sparse_columns_are_predicted_too(name):
    frame = pd.DataFrame.sparse.from_spmatrix(sparse.csr_matrix(X))
    model = cast(Any, clone(ESTIMATORS[name])).fit(frame, Y)
    plain = cast(Any, clone(ESTIMATORS[name])).fit(X, Y)
    np.testing.assert_array_equal(model.predict(frame), plain.predict(X))


@pytest.mark.parametrize(
    "model",
    [
        LMSBNClassifierCV(Cs=2, random_state=0),
        AutoLabelClassifier(families=["network"], time_budget=1, random_state=0),
    ],
    ids=["penalties", "automatic"],
)
def test_splitters_are_taken_and_groups_kept_together(model):
    seen = []

    class Splitter(GroupKFold):
        def split(self, X, y=None, groups=None):
            seen.append(groups)
            return super().split(X, y, groups)

    groups, labels = np.arange(60) // 6, Y.astype(float)
    labels[7] = np.nan
    model.set_params(cv=Splitter(3)).fit(X, labels, groups=groups)
    np.testing.assert_array_equal(seen[0], groups)
    assert model.set_params(cv=[(np.arange(30), np.arange(30, 60))]).fit(X, labels).score(X, Y) > 0
    assert model.set_params(cv=2).fit(X, labels, groups=groups).score(X, Y) > 0
    with pytest.raises(ValueError, match="cv: expected 2 folds to the"):
        model.set_params(cv=100).fit(X, labels)


def test_probabilities_of_an_automatic_choice_are_those_of_the_members():
    settings: Any = {"time_budget": 1, "cv": 2, "random_state": 0}
    model = AutoLabelClassifier("hamming", families=["forest"], **settings).fit(X, WORDS)
    found = model.predict_proba(X)
    assert found.shape == (60, 3)
    np.testing.assert_array_equal(model.predict(X) == "yes", found > 0.5)
    powersets = AutoLabelClassifier(families=["label powerset"], mixture=False, **settings).fit(X, Y)
    np.testing.assert_array_equal(powersets.predict_proba(X), powersets.predict(X))
    of_classes = AutoLabelClassifier(families=["network"], **settings).fit(X, Y.sum(1))
    np.testing.assert_allclose(of_classes.predict_proba(X).sum(1), 1)
    of_two = AutoLabelClassifier(families=["network"], **settings).fit(X, Y[:, 0])
    assert of_two.predict_proba(X).shape == (60, 2)


def test_a_chain_of_other_libraries_is_not_saved_and_says_why(tmp_path):
    with pytest.raises(TypeError, match=r"with such classifiers\. Files of lmbm_torch hold arrays"):
        clone(CHAIN).fit(X, Y).save(tmp_path / "chain.safetensors")


def test_missing_truth_agrees_with_every_answer():
    truth = np.array([["a", None], ["b", "a"], [None, None]], object)
    answers = np.array([["a", "b"], ["b", "b"], ["a", "a"]], object)
    assert exact_match(truth, answers) == 0.5
    assert exact_match(truth, answers, np.array([3.0, 1.0, 9.0])) == 0.75
