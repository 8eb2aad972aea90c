"""Frames of labels with columns of classes, names, marks or arrays of JSON, in ``fit`` and later calls."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from problems.dependent import problem
from sklearn.linear_model import LogisticRegression

from lmbm_torch import load
from lmbm_torch.estimators import (
    IndependentLabelsClassifier,
    KernelLogisticRegression,
    LMSBNClassifier,
    StructuralSVMClassifier,
)
from lmbm_torch.estimators.common.baselines import LabelPowersetSVM
from lmbm_torch.prediction.predictor import Predictor

X, LABELS = problem(60, 3)
COLOURS = np.array(["blue", "green", "red"])[np.arange(60) % 3]
FRAME = pd.DataFrame({"sun": LABELS[:, 0].astype(int), "colour": COLOURS})
NAMES = ("sun", "colour=blue", "colour=green", "colour=red")


def network(**settings):
    return LMSBNClassifier(C=0.3, random_state=0, **settings)


@pytest.mark.parametrize(
    "model",
    [
        network(),
        StructuralSVMClassifier(C=0.3, random_state=0),
        IndependentLabelsClassifier(LogisticRegression()),
    ],
    ids=lambda model: type(model).__name__,
)
def test_answers_have_exactly_one_class(model):
    found = model.fit(X, FRAME)
    assert found.label_names_ == NAMES
    answers = found.predict(X)
    assert (answers[:, 1:].sum(1) == 1).all()
    written = pd.DataFrame(found.label_form_.written(answers))
    assert [*written.columns] == ["sun", "colour"]
    assert found.score(X, FRAME) == (written == FRAME).all(axis=1).mean()


def test_classes_are_known_by_the_name_of_their_column(tmp_path):
    model = network().fit(X, FRAME)
    assert (model.predict(X, known={"colour": "red"})[:, 3] == 1).all()
    np.testing.assert_array_equal(
        model.predict(X, known={"colour": COLOURS}),
        model.predict(X, known={"colour=" + c: c == COLOURS for c in ["blue", "green", "red"]}),
    )
    with pytest.raises(ValueError, match=r"label .colour.: expected names of labels from training such as"):
        model.predict(X, known={"colour": "pink"})
    model.save(tmp_path / "model.safetensors")
    again = load(tmp_path / "model.safetensors")
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    np.testing.assert_array_equal(again.log_prob(X, FRAME), model.log_prob(X, FRAME))
    # A fit to other labels forgets the form.
    assert model.fit(X, LABELS).rules is None
    assert not hasattr(model, "label_form_")


def test_rules_of_classes_are_the_only_ones_left_out_by_other_rules():
    model = network().fit(X, FRAME)
    assert len(model.rules.rules) == 2
    assert model.with_rules(None).rules is None
    # An estimator without rules.
    free = LabelPowersetSVM(1.0).fit(X, FRAME)
    assert free.label_names_ == NAMES
    assert free.rules is None


def test_files_of_estimators_read_the_columns_of_their_labels(tmp_path):
    raw = pd.DataFrame({"size": X[:, 0], "town": np.array(["Oslo", "Rome"])[np.arange(60) % 2]})
    network().fit(raw, FRAME).save(tmp_path / "model.safetensors")
    assert Predictor.load(tmp_path / "model.safetensors").schema.label_form.classes == (NAMES[1:],)


def sets_of(labels):
    return [[name for name, on in zip("abc", row, strict=True) if on] for row in labels[:, :3]]


def test_other_columns_are_those_of_tables():
    model = network().fit(X, LABELS[:, :3])
    expected = model.predict(X)
    arrays = pd.Series([*map(json.dumps, sets_of(LABELS))])
    np.testing.assert_array_equal(network().fit(X, arrays).predict(X), expected)
    marks = pd.DataFrame(np.where(LABELS[:, :3] == 1, "x", None), columns=[*"abc"])
    found = network().fit(X, marks)
    np.testing.assert_array_equal(found.predict(X), expected)
    assert found.score(X, marks) == model.score(X, LABELS[:, :3])
    mixed = pd.DataFrame(
        {
            "tags": [";".join(each) for each in sets_of(LABELS)],
            "mood": np.where(LABELS[:, 0] == 1, "up", "down"),
        }
    )
    assert network().fit(X, mixed).label_names_ == ("a", "b", "c", "mood=down", "mood=up")
    rated = pd.DataFrame({"sun": FRAME["sun"], "stars": pd.Categorical(np.arange(60) % 3)})
    assert network().fit(X, rated).label_names_ == ("sun", "stars=0", "stars=1", "stars=2")


def test_uncertain_labels_stand_beside_classes():
    doubt = np.random.default_rng(0).random(60) < 0.2
    uncertain = FRAME.assign(sun=np.where(doubt, -1, FRAME["sun"]))
    model = network().fit(X, uncertain, uncertain="ignored")
    by_hand = network().fit(X, FRAME.assign(sun=np.where(doubt, np.nan, FRAME["sun"])))
    np.testing.assert_array_equal(model.predict_proba(X), by_hand.predict_proba(X))
    assert model.score(X, uncertain) == by_hand.score(
        X, FRAME.assign(sun=np.where(doubt, np.nan, FRAME["sun"]))
    )


@pytest.mark.parametrize("words", [("no", "yes"), ("false", "true")])
def test_words_stand_beside_numbers(words):
    frame = pd.DataFrame({"sun": np.where(FRAME["sun"], words[1], words[0]), "sea": LABELS[:, 1]})
    frame.loc[3, "sun"] = None
    numbers = LABELS[:, :2].copy()
    numbers[3, 0] = np.nan
    np.testing.assert_array_equal(network().fit(X, frame).coef_, network().fit(X, numbers).coef_)


def test_classes_may_stand_in_arrow_arrays():
    pyarrow = pytest.importorskip("pyarrow")
    found = KernelLogisticRegression().fit(X, pyarrow.array(COLOURS.tolist()))
    np.testing.assert_array_equal(found.predict(X), KernelLogisticRegression().fit(X, COLOURS).predict(X))
