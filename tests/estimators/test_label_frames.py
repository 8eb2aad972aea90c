"""Data frames of labels: names that fit has seen bind all later calls, and any two numbers are labels."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression
from strategies.label_problems import random_inputs

from lmbm_torch.estimators import (
    ConditionalRBMClassifier,
    ConstrainedClassifier,
    LMBMClassifier,
    LMSBNClassifier,
    LMSBNClassifierCV,
    LMSBNEnsembleClassifier,
    ProbabilisticClassifierChain,
    StructuralSVMClassifier,
)

X, LABELS = random_inputs(0, 60, 3, 3)
Y = pd.DataFrame(LABELS.astype(int), columns=["a", "b", "c"])
ESTIMATORS = {
    "network": LMSBNClassifier(random_state=0),
    "machine": LMBMClassifier(),
    "structural": StructuralSVMClassifier(),
    "hidden units": ConditionalRBMClassifier(max_iter=3, tol=1e9),
    "ensemble": LMSBNEnsembleClassifier(LMSBNClassifier(), num_members=2),
    "chain": ProbabilisticClassifierChain(LogisticRegression()),
    "rules": ConstrainedClassifier(LMSBNClassifier(), ["a or b or c or not a"]),
    "penalties": LMSBNClassifierCV(random_state=0),
}


@pytest.mark.parametrize("name", ESTIMATORS)
def test_columns_in_another_order_or_of_other_names_are_refused(name):
    model = ESTIMATORS[name].fit(X, Y)
    calls = {
        "score": lambda labels: model.score(X, labels),
        "predict": lambda labels: model.predict(X, known=labels),
        "decode": lambda labels: model.decode(X, labels),
        "log_prob": lambda labels: model.log_prob(X, labels),
    }
    if not hasattr(model, "log_prob"):
        del calls["log_prob"]
    for call in calls.values():
        with pytest.raises(ValueError, match=r"order of fit, \['a', 'b', 'c'\], got \['c', 'a', 'b'\]"):
            call(Y[["c", "a", "b"]])
        with pytest.raises(ValueError, match=r"got unknown \['x'\], lack \['a'\]"):
            call(Y.rename(columns={"a": "x"}))
        np.testing.assert_array_equal(_plain(call(Y)), _plain(call(Y.to_numpy())))


def _plain(answer) -> np.ndarray:
    return np.asarray(answer.labels if hasattr(answer, "labels") else answer)


def test_a_stream_keeps_to_the_columns_of_its_first_call():
    model = LMSBNClassifier().partial_fit(X, Y).partial_fit(X, Y)
    with pytest.raises(ValueError, match="order of fit"):
        model.partial_fit(X, Y[["b", "a", "c"]])


def test_labels_without_names_are_taken_by_their_place():
    model = LMSBNClassifier().fit(X, Y.to_numpy())
    assert model.score(X, Y[["c", "a", "b"]]) == model.score(X, Y[["c", "a", "b"]].to_numpy())


@pytest.mark.parametrize("form", ["int64", "float64", "Int64"])
@pytest.mark.parametrize("values", [(-1, 1), (1, 2)])
def test_any_two_numbers_of_a_frame_are_labels(form, values):
    coded = Y.map(lambda value: values[value]).astype(form)
    plain, model = (LMSBNClassifier(random_state=0).fit(X, labels) for labels in (Y, coded))
    np.testing.assert_array_equal(model.predict(X), np.where(plain.predict(X) == 1, values[1], values[0]))
    assert model.label_names_ == ("a", "b", "c")
    if form != "int64":
        coded.iloc[0, 0] = np.nan if form == "float64" else pd.NA
        assert set(np.unique(LMSBNClassifier().fit(X, coded).predict(X))) == set(values)
    coded = coded.astype("float64")
    coded.iloc[1, 1] = 7
    with pytest.raises(ValueError, match="y: expected 0, 1 or NaN"):
        LMSBNClassifier().fit(X, coded)
