"""Uncertain labels of −1 become 0, 1, missing, or predictions of the estimator, by an option of ``fit``."""

from __future__ import annotations

from inspect import signature

import numpy as np
import pandas as pd
import pytest
from problems.dependent import problem
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from lmbm_torch import load
from lmbm_torch.data.tables.labels import UNCERTAIN
from lmbm_torch.estimators import (
    ChainCRF,
    ConstrainedClassifier,
    IndependentLabelsClassifier,
    JointHead,
    LMSBNClassifier,
    ProbabilisticClassifierChain,
)
from lmbm_torch.estimators.common.baselines import LabelPowersetSVM

X, Y = problem(80, 1)
DOUBT = np.random.default_rng(0).random(Y.shape) < 0.2
LABELS = np.where(DOUBT, -1, Y)
MODEL = LMSBNClassifier(C=0.3, random_state=0)
# The option stands at a single place; these take their targets by different ways behind the place.
OTHERS = (
    ConstrainedClassifier(MODEL, ["label_0 -> label_1"]),
    IndependentLabelsClassifier(LogisticRegression()),
    ProbabilisticClassifierChain(LogisticRegression(), random_state=0),
)


def probabilities(model):
    return model.predict_proba(X)


@pytest.mark.parametrize("uncertain", ["zeros", "ones", "ignored"])
def test_uncertain_labels_equal_the_value_of_their_convention(uncertain):
    model = LMSBNClassifier(C=0.3, random_state=0).fit(X, LABELS, uncertain=uncertain)
    by_hand = LMSBNClassifier(C=0.3, random_state=0).fit(X, np.where(DOUBT, UNCERTAIN[uncertain], Y))
    np.testing.assert_array_equal(probabilities(model), probabilities(by_hand))


@pytest.mark.parametrize("model", OTHERS, ids=lambda model: type(model).__name__)
def test_uncertain_labels_have_one_meaning_in_other_estimators(model):
    found = probabilities(model.fit(X, LABELS, uncertain="ones"))
    np.testing.assert_array_equal(found, probabilities(model.fit(X, np.where(DOUBT, 1, Y))))


def test_self_training_replaces_doubts_by_predictions_given_the_sure_labels():
    first = LMSBNClassifier(C=0.3, random_state=0).fit(X, np.where(DOUBT, np.nan, Y))
    own = first.predict(X, known=np.where(DOUBT, np.nan, Y))
    assert (own == first.predict(X)).mean() < 1
    by_hand = LMSBNClassifier(C=0.3, random_state=0).fit(X, own)
    model = LMSBNClassifier(C=0.3, random_state=0).fit(X, LABELS, uncertain="self_trained")
    np.testing.assert_array_equal(probabilities(model), probabilities(by_hand))


def test_self_training_leaves_missing_labels_missing():
    partly = LABELS.astype(float)
    partly[:20, 0] = np.nan
    sure = np.where(DOUBT, np.nan, partly)
    own = MODEL.fit(X, sure).predict(X, known=sure)
    expected = probabilities(MODEL.fit(X, np.where(partly == -1, own, partly)))
    np.testing.assert_array_equal(probabilities(MODEL.fit(X, partly, uncertain="self_trained")), expected)


def test_joint_heads_take_uncertain_labels():
    scores = np.clip(Y * 0.5 + 0.25 + np.random.default_rng(1).normal(0, 0.1, Y.shape), 0.01, 0.99)[:, :2]
    head, by_hand = (
        JointHead(random_state=0).fit(scores, labels[:, :2], **option)
        for labels, option in ((LABELS, {"uncertain": "zeros"}), (np.where(DOUBT, 0, Y), {}))
    )
    np.testing.assert_array_equal(head.predict_proba(scores), by_hand.predict_proba(scores))


def test_doubts_are_unknown_after_training(tmp_path):
    frame = pd.DataFrame(LABELS, columns=[f"tag {number}" for number in range(Y.shape[1])])
    model = LMSBNClassifier(C=0.3, random_state=0).fit(X, frame, uncertain="ones")
    missing = frame.where(~DOUBT)
    assert model.label_names_ == (*frame.columns,)
    assert model.score(X, frame) == model.score(X, missing) != model.score(X, frame.where(~DOUBT, 1))
    np.testing.assert_array_equal(model.predict(X, known=LABELS), model.predict(X, known=missing.to_numpy()))
    np.testing.assert_array_equal(model.predict(X, known={"tag 0": LABELS[:, 0]})[LABELS[:, 0] == 1, 0], 1)
    model.save(tmp_path / "model.safetensors")
    assert load(tmp_path / "model.safetensors").score(X, frame) == model.score(X, missing)
    # A later fit forgets the option.
    assert not hasattr(model.fit(X, 2 * Y - 1), "uncertain_")
    assert {*np.unique(model.predict(X))} == {-1, 1}


def test_pipelines_pass_the_option():
    pipe = make_pipeline(StandardScaler(), LMSBNClassifier(C=0.3, random_state=0))
    found = pipe.fit(X, LABELS, lmsbnclassifier__uncertain="zeros").predict_proba(X)
    np.testing.assert_array_equal(found, pipe.fit(X, np.where(DOUBT, 0, Y)).predict_proba(X))
    assert signature(ConstrainedClassifier.fit).parameters["uncertain"].default is None


def test_incremental_training_takes_fixed_conventions_alone():
    model = LMSBNClassifier(C=0.3, random_state=0).partial_fit(X, LABELS, uncertain="ones")
    by_hand = LMSBNClassifier(C=0.3, random_state=0).partial_fit(X, np.where(DOUBT, 1, Y))
    np.testing.assert_array_equal(probabilities(model), probabilities(by_hand))
    with pytest.raises(ValueError, match="expected no 'self_trained' in partial_fit"):
        MODEL.partial_fit(X, LABELS, uncertain="self_trained")


@pytest.mark.parametrize(
    ("labels", "uncertain", "message"),
    [
        (LABELS, "maybe", "uncertain: expected one of .*'zeros'.* got 'maybe'"),
        (LABELS, ["ones"], r"got \['ones'\]"),
        (LABELS * 2, "ones", r"-1 \(uncertain\) or missing, got \[-2.0, 2.0\]"),
        (LABELS[:, 0], "ones", r"got an array of shape \(80,\)"),
        (np.full(Y.shape, "red"), "ones", "could not convert string to float"),
    ],
)
def test_other_conventions_and_values_are_refused(labels, uncertain, message):
    with pytest.raises(ValueError, match=message):
        LMSBNClassifier().fit(X, labels, uncertain=uncertain)


def test_without_the_option_minus_one_stays_a_value_of_the_owner():
    model = LMSBNClassifier(C=0.3, random_state=0).fit(X, 2 * Y - 1)
    assert {*np.unique(model.predict(X))} == {-1, 1}
    with pytest.raises(ValueError, match="y: "):
        LMSBNClassifier().fit(X, LABELS)


def test_sequences_and_incomplete_training_are_refused():
    with pytest.raises(ValueError, match="y: expected labels"):
        ChainCRF().fit([X[:3], X[3:5]], [[0, 1, 0], [1, -1]], uncertain="ones")
    with pytest.raises(ValueError, match="y: expected"):
        LabelPowersetSVM().fit(X, LABELS, uncertain="ignored")
