"""Classifiers under a hierarchy: probabilities and answers that obey it, held to enumeration."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.ensemble import ExtraTreesClassifier, HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score
from sklearn.multioutput import MultiOutputClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.neural_network import MLPClassifier
from sklearn.svm import LinearSVC

from lmbm_torch.estimators import HierarchicalClassifier, LMSBNClassifier
from lmbm_torch.estimators.wrappers.hierarchical import ROOT, LabelForest

NAMES = ("02/01", "01", "01/01/03", "01/01", "02", "01/01/04")
FOREST = LabelForest.of("/", NAMES)
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(120, 4))


def closed_vectors(forest: LabelForest) -> np.ndarray:
    """All label vectors that obey the hierarchy."""
    every = np.array(list(product([0, 1], repeat=len(forest.names))))
    child = np.flatnonzero(forest.parents != ROOT)
    return every[(every[:, child] <= every[:, forest.parents[child]]).all(1)]


def labels_of(features: np.ndarray) -> pd.DataFrame:
    noisy = features[:, [0, 1, 2, 3, 1, 0]] + 0.5 * RANDOM.normal(size=(len(features), 6)) > -0.3
    for label in FOREST.order:
        if FOREST.parents[label] != ROOT:
            noisy[:, label] &= noisy[:, FOREST.parents[label]]
    return pd.DataFrame(noisy.astype(int), columns=list(NAMES))


Y = labels_of(X)
BAYES = MultiOutputClassifier(GaussianNB())
ESTIMATORS = {
    "trees": ExtraTreesClassifier(20, random_state=0),
    "one for each label": MultiOutputClassifier(LogisticRegression()),
    "network of neurons": MLPClassifier((8,), max_iter=30, random_state=0),
    "sigmoid belief network": LMSBNClassifier(random_state=0),
}


def without_hierarchy(estimator: Any) -> np.ndarray:
    fitted: Any = clone(estimator)
    return np.stack([table[:, 1] for table in fitted.fit(X, Y).predict_proba(X)], 1)


def assert_coherent(values: np.ndarray) -> None:
    child = np.flatnonzero(FOREST.parents != ROOT)
    assert (values[:, child] <= values[:, FOREST.parents[child]]).all()


@pytest.mark.parametrize("scope", ["all", "parent"])
@pytest.mark.parametrize("name", ESTIMATORS)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_probabilities_and_answers_obey_the_hierarchy(name, scope):
    model = HierarchicalClassifier(ESTIMATORS[name], scope=scope).fit(X[:90], Y[:90])
    probability = model.predict_proba(X[90:])
    assert ((probability >= 0) & (probability <= 1)).all()
    assert_coherent(probability)
    np.testing.assert_array_equal(model.predict(X[90:]), probability > 0.5)
    assert_coherent(model.set_params(decoder="exact_match").predict(X[90:]))


def test_joint_distribution_is_that_of_the_reported_marginals():
    model = HierarchicalClassifier(BAYES, scope="parent", decoder="exact_match").fit(X, Y)
    vectors = closed_vectors(FOREST)
    scores = np.stack([model.log_prob(X, np.tile(each, (len(X), 1))) for each in vectors], 1)
    np.testing.assert_allclose(np.exp(scores).sum(1), 1)
    np.testing.assert_allclose(np.exp(scores) @ vectors, model.predict_proba(X), atol=1e-12)
    np.testing.assert_array_equal(model.predict(X), vectors[scores.argmax(1)])
    broken = np.zeros((len(X), 6), int)
    broken[:, NAMES.index("01/01")] = 1
    assert np.isneginf(model.log_prob(X, broken)).all()


def test_children_are_learned_from_the_instances_of_their_parent():
    model = HierarchicalClassifier(BAYES, scope="parent").fit(X, Y)
    has_parent = Y["01/01"].to_numpy() == 1
    alone = GaussianNB().fit(X[has_parent], Y["01/01/03"][has_parent]).predict_proba(X)[:, 1]
    found = model.predict_proba(X)
    expected = alone * found[:, NAMES.index("01/01")]
    np.testing.assert_allclose(found[:, NAMES.index("01/01/03")], expected)


def test_one_fit_is_corrected_by_descendants_alone():
    estimator = BAYES
    plain = without_hierarchy(estimator)
    found = HierarchicalClassifier(estimator).fit(X, Y).predict_proba(X)
    for place, name in enumerate(NAMES):
        below = [other for other, path in enumerate(NAMES) if f"{path}/".startswith(f"{name}/")]
        np.testing.assert_array_equal(found[:, place], plain[:, below].max(1))
    assert (found != plain).any()


def test_averages_of_trees_need_no_correction():
    trees = ExtraTreesClassifier(20, random_state=0)
    plain = without_hierarchy(trees)
    np.testing.assert_array_equal(HierarchicalClassifier(trees).fit(X, Y).predict_proba(X), plain)


@pytest.mark.parametrize("scope", ["all", "parent"])
def test_labels_that_never_vary_stay_as_they_were(scope):
    labels = Y.copy()
    labels["02"] = 1
    labels["01/01/03"] = 0
    model = HierarchicalClassifier(ExtraTreesClassifier(5, random_state=0), scope=scope).fit(X, labels)
    found = model.predict_proba(X)
    assert (found[:, NAMES.index("02")] == 1).all()
    assert (found[:, NAMES.index("01/01/03")] == 0).all()
    nothing = HierarchicalClassifier(BAYES, scope=scope).fit(X, 0 * labels)
    assert (nothing.predict_proba(X) == 0).all()


def test_missing_features_pass_to_estimators_that_take_them():
    holes = X.copy()
    holes[::3, 0] = np.nan
    boosted = MultiOutputClassifier(HistGradientBoostingClassifier(max_iter=3))
    assert_coherent(HierarchicalClassifier(boosted).fit(holes, Y).predict_proba(holes))


@pytest.mark.parametrize("kind", [sparse.coo_array, sparse.csr_array])
def test_sparse_instances_are_taken(kind):
    model = HierarchicalClassifier(ESTIMATORS["one for each label"], scope="parent")
    expected = model.fit(X, Y).predict_proba(X)
    np.testing.assert_allclose(model.fit(kind(X), Y).predict_proba(kind(X)), expected, atol=1e-5)


def test_a_mapping_is_the_same_as_paths_and_scikit_learn_s_tools_take_it():
    parents = {1: 0, "label_2": "label_1"}
    model = HierarchicalClassifier(ExtraTreesClassifier(5, random_state=0), parents)
    labels = np.sort(Y.to_numpy()[:, :3], axis=1)[:, ::-1]
    assert (model.fit(X, labels).forest_.parents == [ROOT, 0, 1]).all()
    paths = pd.DataFrame(labels, columns=["a", "a/b", "a/b/c"])
    again = HierarchicalClassifier(model.estimator, "/").fit(X, paths)
    np.testing.assert_array_equal(model.predict_proba(X), again.predict_proba(X))
    assert again.predict_names(X[:1]) == [
        tuple(np.array(["a", "a/b", "a/b/c"])[again.predict(X[:1])[0] == 1])
    ]
    assert cross_val_score(clone(model), X, labels, cv=3).min() > 0.2


@pytest.mark.parametrize(
    ("changes", "labels", "error", "message"),
    [
        ({"hierarchy": {"label_0": "label_9"}}, Y.to_numpy(), ValueError, "hierarchy: expected .* 'label_9'"),
        ({"hierarchy": {"label_0": ["label_1"]}}, Y.to_numpy(), ValueError, r"hierarchy: .* \['label_1'\]"),
        ({"hierarchy": {0: 1, 1: 2, 2: 0}}, Y.to_numpy(), ValueError, "hierarchy: expected no circle"),
        ({}, Y.assign(**{"01": 0}), ValueError, "y: expected labels together .* '01/01' without '01' in row"),
        ({}, Y.astype(float).replace(0, 2), ValueError, "y: expected 0, 1 or NaN"),
        ({"scope": "local"}, Y, ValueError, "'scope' parameter"),
        ({"estimator": LinearSVC()}, Y, TypeError, "predict_proba"),
    ],
)
def test_what_cannot_be_fitted_is_refused(changes, labels, error, message):
    model = HierarchicalClassifier(ExtraTreesClassifier(2)).set_params(**changes)
    with pytest.raises(error, match=message):
        model.fit(X, labels)
    assert not hasattr(model, "forest_")
