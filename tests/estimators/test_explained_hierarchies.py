"""Explanations in a hierarchy: parts that sum to the probabilities, and answers held to enumeration."""

from __future__ import annotations

from itertools import product

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.ensemble import ExtraTreesClassifier, HistGradientBoostingClassifier
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.multioutput import MultiOutputClassifier
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier

from lmbm_torch.estimators import ConformalClassifier, HierarchicalClassifier
from lmbm_torch.estimators.wrappers.hierarchical import ROOT, LabelForest

NAMES = ("b/a", "a", "a/a/a", "a/a", "b", "a/a/b")
FOREST = LabelForest.of("/", NAMES)
RANDOM = np.random.default_rng(1)
X = pd.DataFrame(RANDOM.normal(1.0, 1.0, size=(120, 4)), columns=list("stuv"))


def drawn() -> pd.DataFrame:
    present = X.to_numpy()[:, [0, 1, 2, 3, 1, 0]] + 0.8 * RANDOM.normal(size=(len(X), 6)) > 0.5
    for label in FOREST.order:
        if FOREST.parents[label] != ROOT:
            present[:, label] &= present[:, FOREST.parents[label]]
    return pd.DataFrame(present.astype(int), columns=list(NAMES))


Y = drawn()
TREES = ExtraTreesClassifier(5, max_depth=4, random_state=0)
TAKEN_APART = {
    "trees": TREES,
    "tree": DecisionTreeClassifier(max_depth=3, random_state=0),
    "scaled trees": make_pipeline(StandardScaler(), TREES),
    "trees for each label": MultiOutputClassifier(TREES),
    "boosted": MultiOutputClassifier(HistGradientBoostingClassifier(max_iter=3, random_state=0)),
    "linear": MultiOutputClassifier(LogisticRegression()),
    "scaled linear": MultiOutputClassifier(make_pipeline(StandardScaler(), LogisticRegression())),
}
NEIGHBOURS = KNeighborsClassifier(7, weights="distance")
SCOPES = ["all", "parent"]
VECTORS = np.array(list(product([0, 1], repeat=6)))
CHILDREN = np.flatnonzero(FOREST.parents != ROOT)
VECTORS = VECTORS[(VECTORS[:, CHILDREN] <= VECTORS[:, FOREST.parents[CHILDREN]]).all(1)]


def needs_shap(name: str) -> None:
    if "linear" not in name:
        pytest.importorskip("shap", reason="the extra 'explain' is not installed: no shap")


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("name", TAKEN_APART)
def test_parts_sum_to_the_probabilities(name, scope):
    needs_shap(name)
    model = HierarchicalClassifier(TAKEN_APART[name], scope=scope).fit(X, Y)
    found, row = model.explain(X[7:8]), X[7:8]
    assert list(found) == list(NAMES)
    assert [each.value for each in found.values()] == model.predict(row)[0].tolist()
    for each, probability in zip(found.values(), model.predict_proba(row)[0], strict=True):
        assert each.unit == "probability"
        assert each.field == pytest.approx(probability)
        assert each.intercept + sum(each.features.values()) == pytest.approx(probability)
        assert set(each.features) <= set(X)
        assert each.features
        assert f"probability {each.field:+.2f} = {each.intercept:+.2f}" in str(found)
    assert "<td>b/a = " in found._repr_html_()
    assert found.to_dict()["by_label"][0]["unit"] == "probability"


def test_of_trees_the_parts_are_those_of_the_whole_forest():
    shap = pytest.importorskip("shap", reason="the extra 'explain' is not installed: no shap")
    model = HierarchicalClassifier(TREES).fit(X, Y)
    found = model.explain(X[7:8])
    explainer = shap.TreeExplainer(model.members_[0].estimator)
    # Two classes a label, the six labels together count as one distribution.
    values = 6 * explainer.shap_values(X[7:8].to_numpy())[0, :, 1::2]
    for place, name in enumerate(NAMES):
        expected = dict(zip(X, values[:, place], strict=True))
        assert found[name].features == pytest.approx({k: v for k, v in expected.items() if v})
        assert found[name].intercept == pytest.approx(6 * explainer.expected_value[2 * place + 1])


def test_a_raised_label_has_the_parts_of_its_descendant():
    model = HierarchicalClassifier(TAKEN_APART["linear"]).fit(X, Y)
    said = model.uncorrected(X)
    below = NAMES.index("a/a/b")
    row = int((said[:, below] - said[:, [1, 2, 3]].max(1)).argmax())
    found = model.explain(X[row : row + 1])
    assert said[row, below] > said[row, [1, 2, 3]].max()
    for name in ("a", "a/a"):
        assert found[name].field == pytest.approx(said[row, below])
        assert found[name].features == found["a/a/b"].features
    is_raised = (said > 0.5)[:, CHILDREN] & (said <= 0.5)[:, FOREST.parents[CHILDREN]]
    assert is_raised.any()
    for row in (int(is_raised.any(1).argmax()), int((~is_raised).all(1).argmax())):
        names = [f"{NAMES[child]} -> {NAMES[FOREST.parents[child]]}" for child in CHILDREN[is_raised[row]]]
        assert sorted(model.explain(X[row : row + 1]).rules) == sorted(names)


def test_of_a_product_each_factor_counts_by_the_mean_of_the_other():
    """The parent sees one feature and the child another: the Shapley values of two players, by predicting."""
    labels = np.sort(Y.to_numpy()[:, [1, 3]], 1)[:, ::-1]
    rows = X.to_numpy()[:, :2]
    model = HierarchicalClassifier(LogisticRegression(), {1: 0}, scope="parent").fit(rows, labels)
    for member, weights in zip(model.members_, ([2.0, 0.0], [0.0, -1.5]), strict=True):
        member.estimator.coef_[:] = weights
    reference = np.array([0.3, -0.2])
    row = np.array([[1.0, 2.0]])

    def child(first: float, second: float) -> float:
        return float(model.predict_proba(np.array([[first, second]]))[0, 1])

    (a, b), (c, d) = row[0], reference
    found = model.explain(row, reference=reference)["label_1"]
    assert found.intercept == pytest.approx(child(c, d))
    first = (child(a, d) - child(c, d) + child(a, b) - child(c, b)) / 2
    second = (child(c, b) - child(c, d) + child(a, b) - child(a, d)) / 2
    assert found.features == pytest.approx({"feature_0": first, "feature_1": second})


@pytest.mark.parametrize("balance", [0.0, 1e-5])
def test_parts_that_cancel_count_by_the_slope_of_the_probability(balance):
    labels = Y.to_numpy()[:, [1, 3]].max(1, keepdims=True)
    rows = X.to_numpy()[:, :2]
    model = HierarchicalClassifier(MultiOutputClassifier(LogisticRegression()), {}).fit(rows, labels)
    (member,) = model.members_[0].estimator.estimators_
    member.coef_[:], member.intercept_[:] = [2.0, -2.0], 1.5
    found = model.explain(np.array([[1.0 + balance, 1.0]]), reference=np.zeros(2))["label_0"]
    probability = 1 / (1 + np.exp(-1.5))
    slope = probability * (1 - probability)
    assert found.intercept == pytest.approx(probability)
    assert found.features == pytest.approx({"feature_0": 2 * slope, "feature_1": -2 * slope}, rel=1e-4)


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("form", [np.asarray, sparse.csr_array, pd.DataFrame])
def test_features_are_left_out_by_predicting_again(form, scope):
    model = HierarchicalClassifier(TAKEN_APART["linear"], scope=scope).fit(form(X), Y)
    row = form(X[30:31])
    before, changing = model.predict(row)[0], 0
    for reference in (None, np.full(4, -1.0)):
        found = model.explain(row, reference=reference)
        assert len(found.by_feature) == 4
        for name, changes in found.by_feature.items():
            changed = X[30:31].copy()
            place = list(X).index(name) if form is pd.DataFrame else int(name.removeprefix("feature_"))
            changed.iloc[0, place] = X.mean().iloc[place] if reference is None else reference[place]
            after = model.predict(form(changed))[0]
            assert changes == {NAMES[k]: after[k] for k in np.flatnonzero(after != before)}
            changing += len(changes)
    assert changing


def conditioned(model, row, label: int, value: int) -> tuple[np.ndarray, np.ndarray]:
    """Log-probabilities and, given one label, probabilities of all vectors that obey the hierarchy."""
    scores = model.log_prob(row.iloc[[0] * len(VECTORS)], VECTORS)
    weight = np.exp(scores) * (VECTORS[:, label] == value)
    return scores, weight / weight.sum()


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("decoder", ["hamming", "exact_match"])
def test_a_label_that_is_otherwise_changes_others_as_enumeration_says(decoder, scope):
    model = HierarchicalClassifier(MultiOutputClassifier(NEIGHBOURS), scope=scope, decoder=decoder).fit(X, Y)
    changing, ruled_out = 0, 0
    # Of neighbours, for an instance of training is its own.
    for place in range(4):
        row = X[place : place + 1] + 0.1
        found, probability = model.explain(row, num_features=0), model.predict_proba(row)[0]
        before = model.predict(row)[0]
        for label, (name, each) in enumerate(found.items()):
            assert each.unit == "unknown"
            assert each.field == pytest.approx(probability[label])
            held = 1 - each.value
            if probability[label] == 1 - held:
                assert each.otherwise is None
                assert each.cost == np.inf
                ruled_out += 1
                continue
            scores, chance = conditioned(model, row, label, held)
            after = (chance @ VECTORS > 0.5).astype(int) if decoder == "hamming" else VECTORS[chance.argmax()]
            differing = np.flatnonzero(after != before)
            assert each.otherwise == {NAMES[k]: after[k] for k in differing if NAMES[k] != name}
            changing += len(each.otherwise)
            if decoder == "hamming":
                assert np.isnan(each.cost)
            else:
                allowed = VECTORS[:, label] == held
                assert each.cost == pytest.approx(scores.max() - scores[allowed].max())
    assert changing
    assert ruled_out


def test_once_a_label_is_known_the_others_are_as_probable_as_enumeration_says():
    conditional = RANDOM.uniform(0.1, 0.9, size=(3, 6))
    scores = np.stack([FOREST.log_prob(conditional, np.tile(each, (3, 1))) for each in VECTORS], 1)
    for label in range(6):
        for value in (0, 1):
            weight = np.exp(scores) * (VECTORS[:, label] == value)
            expected = weight @ VECTORS / weight.sum(1, keepdims=True)
            updated = FOREST.given(conditional, label, is_present=bool(value))
            np.testing.assert_allclose(FOREST.multiplied(updated), expected, atol=1e-12)


def test_missing_features_and_labels_that_never_vary_have_their_say():
    pytest.importorskip("shap", reason="the extra 'explain' is not installed: no shap")
    holes = X.mask(RANDOM.random(X.shape) < 0.3)
    labels = Y.assign(**{"b": 1, "a/a/a": 0})
    model = HierarchicalClassifier(TAKEN_APART["boosted"], scope="parent").fit(holes, labels)
    found = model.explain(holes[7:8])
    assert found["b"].field == 1
    assert not found["b"].features
    assert found["a/a/a"].field == 0
    assert found["a/a/a"].otherwise is None
    assert found["a/a"].intercept + sum(found["a/a"].features.values()) == pytest.approx(found["a/a"].field)
    np.testing.assert_allclose(model.feature_means_, holes.mean())


def test_instances_of_texts_are_explained_by_what_is_made_of_them():
    texts = ["sun and sea", "rain in town", "sun in town", "rain and sea", "sun", "sea and rain"] * 5
    labels = np.array([[1, 0], [0, 0], [1, 1], [0, 0], [1, 0], [0, 0]] * 5)
    each = make_pipeline(TfidfVectorizer(), MultiOutputClassifier(LogisticRegression()))
    model = HierarchicalClassifier(each, {1: 0}).fit(texts, labels)
    found = model.explain(texts[:1])
    assert max(found["label_0"].features, key=found["label_0"].features.__getitem__) == "sun"
    assert found.by_feature == {}
    with pytest.raises(ValueError, match="reference: expected None"):
        model.explain(texts[:1], reference=np.zeros(2))


def test_what_cannot_be_explained_is_refused_and_a_conformal_classifier_explains_as_its_estimator():
    model = HierarchicalClassifier(MultiOutputClassifier(LogisticRegression())).fit(X, Y)
    with pytest.raises(ValueError, match="X: expected one instance, got 2"):
        model.explain(X[:2])
    with pytest.raises(ValueError, match="reference: expected shape"):
        model.explain(X[:1], reference=np.zeros(3))
    around = ConformalClassifier(HierarchicalClassifier(NEIGHBOURS), random_state=0).fit(X, Y)
    # No numbers where there is no objective, and these are not equal.
    assert str(around.explain(X[:1]).to_dict()) == str(around.estimator_.explain(X[:1]).to_dict())
