"""Explanations without parts: what they say is what predicting again says."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.sparse import csr_array
from sklearn.datasets import make_multilabel_classification
from sklearn.ensemble import ExtraTreesClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler

from lmbm_torch.estimators import (
    AutoLabelClassifier,
    ConditionalRBMClassifier,
    ConformalClassifier,
    ConstrainedClassifier,
    LMBMClassifier,
    LMSBNClassifier,
    LMSBNClassifierCV,
    LMSBNEnsembleClassifier,
    ProbabilisticClassifierChain,
    ThresholdTunedClassifier,
)
from lmbm_torch.estimators.automatic.beliefs import beliefs, marginals
from lmbm_torch.estimators.automatic.rules import Above
from lmbm_torch.estimators.common.baselines import LabelPowersetSVM

X, Y = map(np.asarray, make_multilabel_classification(60, 5, n_classes=4, n_labels=2, random_state=1)[:2])
NAMES = ["sun", "rain", "city", "field"]
ROWS = pd.DataFrame(X, columns=list("vwxyz"))
LABELS = pd.DataFrame(Y, columns=NAMES)
ROW = 12
WITH_KNOWN = [
    ConditionalRBMClassifier(max_iter=20, random_state=0),
    LMSBNEnsembleClassifier(num_members=2, random_state=0),
    ThresholdTunedClassifier(LMSBNClassifier(random_state=0), cv=2, num_steps=2, max_cycles=1),
    LMSBNClassifier(degree=3, random_state=0),
    LMBMClassifier(random_state=0).set_params(cliques=[(0, 1, 2)]),
    ConstrainedClassifier(LMSBNEnsembleClassifier(num_members=2, random_state=0), "sun -> not rain"),
]


def as_dict(labels) -> dict[str, int]:
    return dict(zip(NAMES, np.asarray(labels)[0].tolist(), strict=True))


def changes(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    return {name: value for name, value in after.items() if value != before[name]}


def assert_features_are_left_out(model, found, reference) -> None:
    """Each one's changes are those of predicting without it; all features are told."""
    before = as_dict(model.predict(ROWS[ROW : ROW + 1]))
    assert {name: each.value for name, each in found.items()} == before
    assert sorted(found.by_feature) == list(ROWS)
    for name, told in found.by_feature.items():
        row = ROWS[ROW : ROW + 1].astype(float)
        row[name] = reference[ROWS.columns.get_loc(name)]
        assert told == changes(before, as_dict(model.predict(row)))


@pytest.mark.parametrize("estimator", WITH_KNOWN, ids=lambda each: type(each).__name__)
def test_labels_are_held_and_features_left_out(estimator):
    model, row = estimator.fit(ROWS, LABELS), ROWS[ROW : ROW + 1]
    found, before = model.explain(row), as_dict(model.predict(row))
    assert_features_are_left_out(model, found, X.mean(0))
    is_ruled = isinstance(model, ConstrainedClassifier)
    proba = (model.estimator_ if is_ruled else model).predict_proba(row)[0]
    for place, (name, each) in enumerate(found.items()):
        assert each.unit == "unknown"
        assert each.field == pytest.approx(proba[place])
        held = np.full((1, 4), np.nan)
        held[0, place] = 1 - each.value
        after = as_dict(model.predict(row, known=held))
        assert each.otherwise == {key: it for key, it in changes(before, after).items() if key != name}
        assert np.isfinite(each.cost)
    assert any(found.by_feature.values())


def test_a_reference_takes_the_place_of_the_means():
    model = LMSBNEnsembleClassifier(num_members=2, random_state=0).fit(ROWS, LABELS)
    reference = X.max(0) + 3.0
    found = model.explain(ROWS[ROW : ROW + 1], reference=reference)
    assert_features_are_left_out(model, found, reference)
    assert found.by_feature != model.explain(ROWS[ROW : ROW + 1]).by_feature
    with pytest.raises(ValueError, match="reference: expected shape"):
        model.explain(ROWS[:1], reference=np.zeros(4))
    with pytest.raises(ValueError, match="X: expected"):
        model.explain(ROWS[:2])
    with pytest.raises(ValueError, match="explain: expected a model of label matrices"):
        LMSBNEnsembleClassifier(num_members=2, random_state=0).fit(X, Y.sum(1)).explain(X[:1])


def test_kernel_values_are_no_features():
    base = LMSBNClassifier(kernel="precomputed", random_state=0)
    model = LMSBNEnsembleClassifier(base, num_members=2, random_state=0).fit(X @ X.T, LABELS)
    assert model.explain(X[:1] @ X.T).by_feature == {}


@pytest.mark.parametrize("form", [np.asarray, csr_array])
def test_what_holds_no_labels_says_so(form):
    model = LabelPowersetSVM().fit(form(X), LABELS)
    found = model.explain(form(X)[ROW : ROW + 1])
    before = as_dict(model.predict(X[ROW : ROW + 1]))
    for name, told in found.by_feature.items():
        row, place = X[ROW : ROW + 1].copy(), int(name.removeprefix("feature_"))
        row[0, place] = X.mean(0)[place]
        assert told == changes(before, as_dict(model.predict(row)))
    assert any(found.by_feature.values())
    assert all(each.otherwise is None and np.isnan(each.cost) for each in found.values())
    told = f"neither probability nor parts are known; {1 - before['sun']} cannot be held"
    assert str(found).startswith(f"sun = {before['sun']}: {told}\n")


def test_a_path_explains_as_its_estimator_with_names():
    model = LMSBNClassifierCV(LMSBNClassifier(random_state=0), Cs=2, cv=2).fit(ROWS, LABELS)
    found = model.explain(ROWS[ROW : ROW + 1])
    alone = model.estimator_.explain(X[ROW : ROW + 1].astype(float))
    assert [each.field for each in found.values()] == [each.field for each in alone.values()]
    assert sorted(found["sun"].features) == list(ROWS)
    assert set(found.by_feature) <= set(ROWS)


def test_a_conformal_classifier_explains_as_its_estimator():
    model = ConformalClassifier(LMSBNClassifier(random_state=0), random_state=0).fit(ROWS, LABELS)
    row = ROWS[ROW : ROW + 1]
    assert model.explain(row).to_dict() == model.estimator_.explain(row).to_dict()
    assert not hasattr(ConformalClassifier(ExtraTreesClassifier()), "explain")


def chosen(members, *, rule=None, constraints=None) -> AutoLabelClassifier:
    """As after a search that has chosen these, the first one the heaviest."""
    model = AutoLabelClassifier(constraints=constraints)
    model._validate_fit(ROWS, LABELS, None)
    piped = [Pipeline([("scale", StandardScaler()), ("model", member)]) for member in members]
    model.members_ = [each.fit(X, Y) for each in piped]
    model.weights_ = np.arange(len(members), 0, -1) / sum(range(len(members) + 1))
    model.rule_, model.feature_means_ = rule, X.mean(0)
    model._scores = [0.5] * len(members)
    return model


NETWORK = LMSBNClassifier(random_state=0)
TREES = ExtraTreesClassifier(5, random_state=0)
MIXTURES = {
    "network": ([NETWORK], None, None, "LMSBNClassifier"),
    "network and trees": ([NETWORK, TREES], None, None, "LMSBNClassifier, the heaviest of 2"),
    "under a rule": ([NETWORK], None, ["not city", "sun -> not rain"], "LMSBNClassifier"),
    "chain": (
        [ProbabilisticClassifierChain(LogisticRegression())],
        None,
        None,
        "ProbabilisticClassifierChain",
    ),
    "trees": ([TREES], Above((0.4,)), None, ""),
    "label sets": ([LabelPowersetSVM(), NETWORK], None, None, ""),
}


@pytest.mark.parametrize("mixture", MIXTURES.values(), ids=MIXTURES.keys())
def test_of_a_choice_the_answer_is_that_of_all(mixture):
    members, rule, constraints, whose = mixture
    model, row = chosen(members, rule=rule, constraints=constraints), ROWS[ROW : ROW + 1]
    found, before = model.explain(row), as_dict(model.predict(row))
    assert_features_are_left_out(model, found, X.mean(0))
    assert found.fields_of == whose
    assert whose in str(found)
    for name, each in found.items():
        if name == "city" and constraints:
            assert each.otherwise is None
            assert each.cost == np.inf
            continue
        after = as_dict(model.predict(row, constraints=f"not {name}" if each.value else name))
        assert each.otherwise == {key: it for key, it in changes(before, after).items() if key != name}
        assert np.isnan(each.cost)
        assert f"at {1 - each.value} changes" in str(found)


def test_the_parts_are_the_heaviest_members():
    model, row = chosen([NETWORK, TREES]), ROWS[ROW : ROW + 1]
    found, heaviest = model.explain(row), model.members_[0]
    labels = model.predict(row)
    scaled = heaviest[:-1].transform(X[ROW : ROW + 1])
    fields = heaviest[-1].energy(scaled).local_fields(torch.from_numpy(labels))[0].numpy()
    for place, each in enumerate(found.values()):
        parts = each.intercept + sum(each.features.values()) + sum(each.labels.values())
        assert each.field == pytest.approx(fields[place])
        assert parts == pytest.approx(each.field)
        assert sorted(each.features) == list(ROWS)


def test_without_parts_the_mixed_probabilities_are_told():
    model = chosen([TREES, NETWORK])
    found = model.explain(ROWS[ROW : ROW + 1])
    row = X[ROW : ROW + 1]
    believed = [beliefs(member, row) for member in model.members_]
    trees, network = (marginals(each)[0] for each in believed if each is not None)
    np.testing.assert_allclose([each.field for each in found.values()], (2 * trees + network) / 3, rtol=1e-6)
    assert all(np.isnan(each.field) for each in chosen([LabelPowersetSVM()]).explain(ROWS[:1]).values())


def test_a_choice_says_which_rules_hold_its_answer():
    free = chosen([NETWORK])
    row = int(np.flatnonzero(free.predict(ROWS)[:, 2])[0])
    assert chosen([NETWORK], constraints="not city").explain(ROWS[row : row + 1]).rules == ("not city",)
    assert free.explain(ROWS[row : row + 1]).rules == ()


def test_a_search_notes_the_means():
    model = AutoLabelClassifier(families=["label powerset"], cv=2, time_budget=0.5, random_state=0)
    model.fit(csr_array(X), LABELS)
    np.testing.assert_allclose(model.feature_means_, X.mean(0))
    assert model.explain(csr_array(X)[:1], num_features=2).by_feature.keys() <= {
        f"feature_{k}" for k in range(5)
    }
    with pytest.raises(ValueError, match="explain: expected a model of label matrices"):
        model.set_params(time_budget=0.1).fit(X, Y[:, 0]).explain(X[:1])
