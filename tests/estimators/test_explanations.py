"""Explanations: contributions that sum to fields, and other answers held to decoding anew."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import sparse
from sklearn.datasets import make_multilabel_classification
from sklearn.linear_model import LogisticRegression

from lmbm_torch.estimators import (
    ConstrainedClassifier,
    LMBMClassifier,
    LMSBNClassifier,
    ProbabilisticClassifierChain,
    StructuralSVMClassifier,
)

X, Y = map(np.asarray, make_multilabel_classification(80, 6, n_classes=4, n_labels=2, random_state=0)[:2])
NAMES = ["sun", "rain", "city", "field"]
ROWS = pd.DataFrame(X, columns=list("uvwxyz"))
LABELS = pd.DataFrame(Y, columns=NAMES)
ESTIMATORS = [
    LMSBNClassifier(random_state=0),
    LMSBNClassifier(C=0.1, decoder="exact_match", random_state=0),
    LMBMClassifier(random_state=0),
    StructuralSVMClassifier(random_state=0),
]


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda each: type(each).__name__)
def test_contributions_sum_to_the_field_of_the_answer(estimator):
    model = estimator.fit(ROWS, LABELS)
    for reference in (None, np.arange(6.0)):
        found = model.explain(ROWS[3:4], reference=reference)
        labels = model.predict(ROWS[3:4])
        fields = model.energy(ROWS[3:4]).local_fields(torch.from_numpy(labels))[0]
        assert list(found) == NAMES
        for each, field, value in zip(found.values(), fields, labels[0], strict=True):
            parts = sum(each.features.values()) + sum(each.labels.values())
            assert each.field == pytest.approx(float(field), abs=1e-9)
            assert each.intercept + parts == pytest.approx(each.field, abs=1e-9)
            assert each.value == value
            assert each.name not in each.labels
            sizes = np.abs(list(each.features.values()))
            assert (np.diff(sizes) <= 0).all()
    assert any(each.labels for each in found.values())


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda each: type(each).__name__)
def test_other_answers_are_those_of_decoding_anew(estimator):
    model = estimator.fit(X, LABELS)
    best = model.predict_decoding(X[3:4])
    found = model.explain(X[3:4])
    labels = best.labels[0].numpy()
    for place, name in enumerate(NAMES):
        known = np.full((1, 4), np.nan)
        known[0, place] = 1 - labels[place]
        other = model.predict_decoding(X[3:4], known=known)
        changed = dict(zip(NAMES, other.labels[0].tolist(), strict=True))
        del changed[name]
        before = dict(zip(NAMES, labels, strict=True))
        assert found[name].otherwise == {key: it for key, it in changed.items() if it != before[key]}
        assert found[name].cost == pytest.approx(abs(float(other.objective - best.objective)))
    centre = np.broadcast_to(model.feature_shift_, 6)
    assert len(found.by_feature) == 6
    for name, changes in found.by_feature.items():
        row = X[3:4].copy()
        place = int(name.removeprefix("feature_"))
        row[0, place] = centre[place]
        after = dict(zip(NAMES, model.predict(row)[0], strict=True))
        assert changes == {key: it for key, it in after.items() if it != before[key]}
    assert any(each.otherwise for each in found.values()) or any(found.by_feature.values())


def test_rules_are_told_and_what_they_rule_out():
    model = ConstrainedClassifier(LMSBNClassifier(random_state=0), ["sun -> not rain", "not city"])
    model.fit(ROWS, LABELS)
    row = next(place for place, rules in enumerate(model.binding_rules(ROWS)) if "not city" in rules)
    found = model.explain(ROWS[row : row + 1])
    assert "not city" in found.rules
    assert [found[name].value for name in NAMES] == model.predict(ROWS[row : row + 1])[0].tolist()
    assert found["city"].otherwise is None
    assert found["city"].cost == np.inf
    assert found["field"].otherwise is not None
    assert "1 is ruled out" in str(found)
    assert "held by the rule not city" in str(found)


def test_an_explanation_is_a_text_a_page_and_a_dict():
    names = ["<b>", "rain", "city", "field"]
    model = LMSBNClassifier(random_state=0).fit(sparse.csr_array(X), pd.DataFrame(Y, columns=names))
    found = model.explain(sparse.csr_array(X)[:1], num_features=2)
    assert len(found.by_feature) == 2
    assert "&lt;b&gt; = " in found._repr_html_()
    assert "<b>" not in found._repr_html_()
    assert str(found).startswith("<b> = ")
    assert json.loads(json.dumps(found.to_dict()))["by_label"][1]["name"] == "rain"
    with pytest.raises(KeyError):
        found["snow"]


@pytest.mark.parametrize(
    ("model", "labels", "rows", "error", "message"),
    [
        (
            LMSBNClassifier(kernel="rbf"),
            Y,
            1,
            ValueError,
            "explain: expected a linear model",
        ),
        (LMSBNClassifier(degree=3), Y, 1, ValueError, "explain: expected dependencies between two labels"),
        (LMBMClassifier().set_params(cliques=[(0, 1, 2)]), Y, 1, ValueError, "explain: .* cliques of more"),
        (LMSBNClassifier(), Y.sum(1), 1, ValueError, "explain: expected a model of label matrices"),
        (LMSBNClassifier(), Y, 2, ValueError, "X: expected"),
    ],
)
def test_what_cannot_be_explained_is_refused(model, labels, rows, error, message):
    model.fit(X, labels)
    with pytest.raises(error, match=message):
        model.explain(X[:rows])


def test_what_is_not_linear_is_refused_by_type():
    chain = ProbabilisticClassifierChain(LogisticRegression())
    model = ConstrainedClassifier(chain, "sun -> not rain").fit(X, LABELS)
    with pytest.raises(TypeError, match="explain: expected a linear network or machine, got Probabilistic"):
        model.explain(X[:1])


@pytest.mark.parametrize("reference", [np.zeros(5), np.full(6, np.nan)])
def test_a_reference_that_is_none_is_refused(reference):
    with pytest.raises(ValueError, match="reference: expected"):
        LMSBNClassifier(random_state=0).fit(X, Y).explain(X[:1], reference=reference)
