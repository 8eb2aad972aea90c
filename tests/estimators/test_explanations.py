"""Explanations: contributions that sum to fields, and other answers held to decoding anew."""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import sparse
from scipy.special import expit, logit
from sklearn.datasets import make_multilabel_classification
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.feature_selection import SelectKBest
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler
from sweeps import thorough

from lmbm_torch.data.features import numbered
from lmbm_torch.estimators import (
    ConstrainedClassifier,
    LMBMClassifier,
    LMSBNClassifier,
    ProbabilisticClassifierChain,
    StructuralSVMClassifier,
)
from lmbm_torch.estimators.explain import contributions

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


def assert_left_out_one_by_one(model, by_feature, centre) -> None:
    """What changes is what prediction says of the row with each feature alone at its place in ``centre``."""
    before = dict(zip(NAMES, model.predict(X[3:4])[0], strict=True))
    assert len(by_feature) == 6
    for name, changes in by_feature.items():
        row = X[3:4].copy()
        place = int(name.removeprefix("feature_"))
        row[0, place] = centre[place]
        after = dict(zip(NAMES, model.predict(row)[0], strict=True))
        assert changes == {key: it for key, it in after.items() if it != before[key]}


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
    assert_left_out_one_by_one(model, found.by_feature, X.mean(0))
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
        (LMSBNClassifier(), Y.sum(1), 1, ValueError, "explain: expected a model of label matrices"),
        (LMSBNClassifier(), Y, 2, ValueError, "X: expected"),
    ],
)
def test_what_cannot_be_explained_is_refused(model, labels, rows, error, message):
    model.fit(X, labels)
    with pytest.raises(error, match=message):
        model.explain(X[:rows])


@pytest.mark.parametrize("rows", [X, ROWS], ids=["array", "frame"])
def test_a_chain_under_rules_has_the_parts_of_its_classifiers(rows):
    chain = ProbabilisticClassifierChain(LogisticRegression())
    model = ConstrainedClassifier(chain, "sun -> not rain").fit(rows, LABELS)
    found = model.explain(rows[5:6])
    assert [each.value for each in found.values()] == model.predict(rows[5:6])[0].tolist()
    assert {each.unit for each in found.values()} == {"field"}
    assert set(found["rain"].features) <= set(ROWS if rows is ROWS else numbered("feature", 6))
    assert found["rain"].features
    held = np.array([[1 - found["sun"].value, np.nan, np.nan, np.nan]])
    after = dict(zip(NAMES, model.predict(rows[5:6], known=held)[0].tolist(), strict=True))
    before = {name: each.value for name, each in found.items()}
    assert found["sun"].otherwise == {
        name: value for name, value in after.items() if name != "sun" and value != before[name]
    }


@pytest.mark.parametrize("reference", [np.zeros(5), np.full(6, np.nan)])
def test_a_reference_that_is_none_is_refused(reference):
    with pytest.raises(ValueError, match="reference: expected"):
        LMSBNClassifier(random_state=0).fit(X, Y).explain(X[:1], reference=reference)


@pytest.mark.parametrize("kernel", ["rbf", "poly", "precomputed"])
def test_of_a_kernel_the_support_vectors_contribute(kernel):
    rows = X @ X.T if kernel == "precomputed" else X
    model = LMSBNClassifier(kernel=kernel, random_state=0).fit(rows, LABELS)
    found = model.explain(rows[3:4])
    labels = model.predict(rows[3:4])
    fields = model.energy(rows[3:4]).local_fields(torch.from_numpy(labels))[0]
    for place, each in enumerate(found.values()):
        parts = sum(each.features.values()) + sum(each.labels.values())
        assert each.field == pytest.approx(float(fields[place]), abs=1e-9)
        assert each.intercept + parts == pytest.approx(each.field, abs=1e-9)
        of_support = {f"row {row}" for row in model.support_}
        assert of_support >= set(each.features)
        assert len(each.features) == (model.dual_coef_[place] != 0).sum()
    if kernel == "precomputed":
        assert found.by_feature == {}
        with pytest.raises(ValueError, match="reference: expected None"):
            model.explain(rows[3:4], reference=np.zeros(len(rows)))
        return
    support: Any = model.support_vectors_
    assert_left_out_one_by_one(model, found.by_feature, support.mean(0))


CHAINED = [
    LogisticRegression(),
    make_pipeline(StandardScaler(), LogisticRegression()),
    RandomForestClassifier(5, random_state=0),
    HistGradientBoostingClassifier(max_iter=5, random_state=0),
    GaussianNB(),
]


@pytest.mark.parametrize("estimator", CHAINED, ids=lambda each: type(each).__name__)
@pytest.mark.parametrize("rows", [X, ROWS], ids=["array", "frame"])
def test_of_a_chain_the_parts_sum_to_what_each_classifier_says(estimator, rows):
    if not isinstance(estimator, LogisticRegression | Pipeline | GaussianNB):
        pytest.importorskip("shap", reason="the extra 'explain' is not installed: no shap")
    chain = ProbabilisticClassifierChain(estimator).set_params(order=[2, 0, 3, 1]).fit(rows, Y)
    found, labels = chain.explain(rows[5:6]), chain.predict(rows[5:6])
    given = chain.energies(rows[5:6])[0]
    units = set()
    for position, label in enumerate(chain.ordering_):
        each = found[f"label_{label}"]
        earlier = torch.from_numpy(labels[:, chain.ordering_[:position]])
        probability = float(
            given.log_conditional(position, torch.zeros(1, dtype=torch.int64), earlier)[0, 1].exp()
        )
        parts = each.intercept + sum(each.features.values()) + sum(each.labels.values())
        assert each.field == pytest.approx(parts)
        said = expit(2 * each.field) if each.unit == "field" else each.field
        assert said == pytest.approx(probability, abs=1e-6)
        assert set(each.labels) <= {f"label_{other}" for other in chain.ordering_[:position]}
        assert bool(each.features) == (each.unit != "unknown")
        units.add(each.unit)
    expected = {"RandomForestClassifier": "probability", "GaussianNB": "unknown"}
    assert units == {expected.get(type(estimator).__name__, "field")}
    assert any(each.labels for each in found.values()) or units == {"unknown"}
    assert len(found.by_feature) == (0 if isinstance(estimator, Pipeline) else 6)
    for name, changes in found.by_feature.items():
        changed = rows[5:6].copy()
        if rows is X:
            changed[0, int(name.removeprefix("feature_"))] = 0
        else:
            changed[name] = 0
        after = chain.predict(changed)[0]
        assert changes == {f"label_{k}": after[k] for k in np.flatnonzero(after != labels[0])}
    assert "no parts are known" in str(found) or units != {"unknown"}


def test_of_many_features_some_are_tried_a_few_at_a_time(monkeypatch):
    model, sizes = LMSBNClassifier(kernel="rbf", random_state=0).fit(X, Y), []
    every = model.explain(X[3:4], num_features=6).by_feature
    monkeypatch.setattr(contributions, "ENTRIES", 2 * X.shape[1])
    monkeypatch.setattr(contributions, "MOST_FEATURES", 5)
    rows = X[3:4]
    found = contributions.most_effective(rows, np.zeros(6), lambda rows: sizes.append(len(rows)) or rows)
    # The row itself, then two at a time; where fields are features, by how far each is from its reference.
    assert sizes == [1, 2, 2, 1]
    assert found == np.argsort(-np.abs(rows[0]), kind="stable")[:5].tolist()
    some = model.explain(X[3:4], num_features=6).by_feature
    assert len(some) == 5
    assert all(every[name] == changes for name, changes in some.items())


def said_by_members(model, row, labels) -> np.ndarray:
    """P(label = 1 | row, the labels before it), (members, labels)."""
    probability = np.empty((len(model.members_), labels.shape[1]))
    for member, (energy, chain) in enumerate(zip(model.energies(row), model.members_, strict=True)):
        for position, label in enumerate(chain.ordering):
            earlier = torch.from_numpy(labels[:, list(chain.ordering[:position])])
            said = energy.log_conditional(position, torch.zeros(1, dtype=torch.int64), earlier)
            probability[member, label] = float(said[0, 1].exp())
    return probability


@pytest.mark.parametrize("estimator", thorough(CHAINED, 2), ids=lambda each: type(each).__name__)
def test_of_several_chains_the_parts_sum_to_the_mean_of_what_they_say(estimator):
    if not isinstance(estimator, LogisticRegression | Pipeline | GaussianNB):
        pytest.importorskip("shap", reason="the extra 'explain' is not installed: no shap")
    model = ProbabilisticClassifierChain(estimator, num_members=3, random_state=0).fit(ROWS, LABELS)
    assert len({chain.ordering for chain in model.members_}) > 1
    place = int(model.predict(ROWS).sum(1).argmax())
    row = ROWS[place : place + 1]
    found, labels = model.explain(row), model.predict(row)
    assert [each.value for each in found.values()] == labels[0].tolist()
    probability = said_by_members(model, row, labels)
    for place, each in enumerate(found.values()):
        is_field = each.unit == "field"
        said = logit(probability[:, place]) / 2 if is_field else probability[:, place]
        assert each.field == pytest.approx(said.mean(), abs=1e-5)
        parts = each.intercept + sum(each.features.values()) + sum(each.labels.values())
        assert each.field == pytest.approx(parts)
        held = np.full((1, 4), np.nan)
        held[0, place] = 1 - each.value
        after = model.predict(row, known=held)[0]
        changed = np.flatnonzero(after != labels[0])
        assert each.otherwise == {NAMES[k]: after[k] for k in changed if k != place}
    assert any(each.labels for each in found.values()) or found["sun"].unit == "unknown"
    assert "fields are those of 3 chains on average" in str(found)
    assert len(found.by_feature) == (0 if isinstance(estimator, Pipeline) else 6)
    if found.by_feature:
        rows = [row.assign(**{name: 0.0}) for name in ROWS]
        effects = [said_by_members(model, each, labels).mean(0) - probability.mean(0) for each in rows]
        first = ROWS.columns[np.abs(effects).max(1).argmax()]
        assert [*model.explain(row, num_features=1).by_feature] == [first]
    for name, changes in found.by_feature.items():
        after = model.predict(row.assign(**{name: 0.0}))[0]
        assert changes == {NAMES[k]: after[k] for k in np.flatnonzero(after != labels[0])}


def test_a_mixture_of_chains_under_rules_says_whose_fields_it_tells():
    chains = ProbabilisticClassifierChain(LogisticRegression(), num_members=2, random_state=0)
    found = ConstrainedClassifier(chains, "not city").fit(ROWS, LABELS).explain(ROWS[5:6])
    assert found["city"].otherwise is None
    assert found.fields_of == "2 chains on average"


def test_features_that_pipelines_make_of_texts_are_named():
    texts = ["sun and sea", "rain in town", "sun in town", "rain and sea", "sun", "sea and rain"] * 5
    tags = np.array([[1, 0], [0, 1], [1, 1], [0, 0], [1, 0], [0, 1]] * 5)
    pipeline = make_pipeline(TfidfVectorizer(), LogisticRegression())
    found = ProbabilisticClassifierChain(pipeline).fit(texts, tags).explain(texts[:1])
    assert set(found["label_0"].features) >= {"sun", "sea"}
    assert max(found["label_0"].features, key=found["label_0"].features.__getitem__) == "sun"
    with pytest.raises(ValueError, match="X: expected one instance, got 2"):
        ProbabilisticClassifierChain(pipeline).fit(texts, tags).explain(texts[:2])


def test_each_classifier_of_a_chain_may_see_other_features():
    tags = (X[:, [0, 3]] > np.median(X[:, [0, 3]], 0)).astype(int)
    pipeline = make_pipeline(SelectKBest(k=1), LogisticRegression())
    found = ProbabilisticClassifierChain(pipeline).fit(ROWS + 1, tags).explain(ROWS[5:6] + 1)
    assert set(found["label_0"].features) == {"u"}
    assert set(found["label_1"].features) == {"x"}


def test_chains_that_are_not_taken_apart_are_refused():
    logistic = LogisticRegression(max_iter=1000)
    three = ProbabilisticClassifierChain(logistic).fit(X, np.arange(len(Y))[:, None] % 3 + Y)
    with pytest.raises(ValueError, match="explain: expected labels of two values each"):
        three.explain(X[:1])
    chain = ProbabilisticClassifierChain(LogisticRegression()).fit(X, Y)
    with pytest.raises(ValueError, match="reference: expected shape"):
        chain.explain(X[:1], reference=np.zeros(5))
    with pytest.raises(ValueError, match="X: expected"):
        chain.explain(X[:2])


def test_trees_without_shap_say_what_brings_it(monkeypatch):
    chain = ProbabilisticClassifierChain(RandomForestClassifier(2, random_state=0)).fit(X, Y)
    monkeypatch.setitem(sys.modules, "shap", None)
    with pytest.raises(ModuleNotFoundError, match=r'pip install "lmbm-torch\[explain\]"'):
        chain.explain(X[:1])
