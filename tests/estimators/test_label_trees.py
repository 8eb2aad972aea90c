"""Trees of label vectors count known labels alone, and every classifier of label vectors takes NaN."""

from __future__ import annotations

import inspect
import sys
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_array
from scipy.special import expit, logit
from sklearn.linear_model import LogisticRegression

from lmbm_torch import estimators, save
from lmbm_torch.estimators import (
    ConformalClassifier,
    IndependentLabelsClassifier,
    JointClassifier,
    JointConformalClassifier,
    LabelBoostingClassifier,
    LabelForestClassifier,
    LMSBNClassifier,
)
from lmbm_torch.estimators.automatic.beliefs import beliefs, marginals
from lmbm_torch.estimators.automatic.candidates import candidates
from lmbm_torch.estimators.common.base import unfitted
from lmbm_torch.estimators.label_chains import boosting

random = np.random.default_rng(0)
X = random.normal(size=(150, 5))
Y = (X[:, :4] + 0.5 * X[:, 4:] > 0).astype(float)
MISSING = np.where(random.random(Y.shape) < 0.4, np.nan, Y)
KNOWN = ~np.isnan(MISSING)
WEIGHTS = random.uniform(0.5, 2, len(X))
UNSEEN = random.normal(size=(100, 5))
TRUTH = (UNSEEN[:, :4] + 0.5 * UNSEEN[:, 4:] > 0).astype(int)
FOREST = LabelForestClassifier(10, random_state=0)
NEEDS_XGBOOST = pytest.mark.skipif(
    not boosting.is_installed(), reason="the extra 'boosting' is not installed: no xgboost"
)
TREES = [
    pytest.param(FOREST, id="forest"),
    pytest.param(LabelBoostingClassifier(20, random_state=0), id="boosting", marks=NEEDS_XGBOOST),
]


# A single row with all labels.
INCOMPLETE = Y[:30].copy()
INCOMPLETE[1:, 2] = np.nan


def fitted(model: Any, *data: Any) -> Any:
    return unfitted(model).fit(*data)


def test_leaves_of_the_forest_are_smoothed_shares_of_known_labels():
    model = fitted(FOREST, X, MISSING, WEIGHTS)
    on = np.array([WEIGHTS[MISSING[:, label] == 1].sum() for label in range(4)])
    every = np.array([WEIGHTS[KNOWN[:, label]].sum() for label in range(4)])
    np.testing.assert_allclose(model.prior_, (on + 1) / (every + 2))
    tree, leaves = model.forest_.estimators_[3], model.leaves_[3]
    places = tree.apply(X)
    for leaf in np.unique(places):
        for label in range(4):
            rows = [row for row in np.flatnonzero(places == leaf) if KNOWN[row, label]]
            positive = sum(WEIGHTS[row] * Y[row, label] for row in rows) + model.prior_[label]
            assert leaves[leaf, label] == pytest.approx(positive / (WEIGHTS[rows].sum() + 1))
    mean = np.mean(
        [own[each.apply(UNSEEN)] for own, each in zip(model.leaves_, model.forest_, strict=True)], 0
    )
    np.testing.assert_allclose(model.predict_proba(UNSEEN), mean)


@NEEDS_XGBOOST
def test_leaves_of_boosting_are_newton_steps_of_known_labels():
    settings: Any = {"learning_rate": 1, "max_depth": 2, "subsample": 1, "max_features": 1, "penalty": 0.5}
    model = LabelBoostingClassifier(1, **settings, random_state=0).fit(X, MISSING, WEIGHTS)
    steps = logit(model.predict_proba(X)) - logit(model.prior_)
    leaves, which = np.unique(steps.round(5), axis=0, return_inverse=True)
    assert len(leaves) == 4
    for leaf in range(4):
        counted = KNOWN[which.ravel() == leaf] * WEIGHTS[which.ravel() == leaf, None]
        gradient = (counted * (Y[which.ravel() == leaf] - model.prior_)).sum(0)
        curvature = (counted * model.prior_ * (1 - model.prior_)).sum(0)
        np.testing.assert_allclose(leaves[leaf], gradient / (curvature + 0.5), atol=1e-4)


@pytest.mark.parametrize("trees", TREES)
def test_trees_learn_more_from_incomplete_rows_than_from_complete_ones(trees):
    complete = KNOWN.all(1)
    few = fitted(trees, X[complete], Y[complete])
    assert fitted(trees, X, MISSING).score(UNSEEN, TRUTH) > few.score(UNSEEN, TRUTH) + 0.1


@pytest.mark.parametrize("trees", TREES)
def test_trees_answer_alike_from_sparse_rows_and_obey_rules(trees):
    rows = np.where(np.abs(X) < 0.5, 0, X)
    dense, sparse = fitted(trees, rows, MISSING), fitted(trees, csr_array(rows), MISSING)
    np.testing.assert_allclose(sparse.predict_proba(csr_array(rows)), dense.predict_proba(rows), atol=1e-6)
    assert (dense.predict(rows)[:, 0] > dense.predict(rows)[:, 1]).any()
    ruled = unfitted(trees).set_params(constraints="label_0 -> label_1")
    labels = ruled.fit(rows, MISSING).predict(rows)
    assert (labels[:, 0] <= labels[:, 1]).all()


@pytest.mark.parametrize("trees", TREES)
def test_trees_take_classes_and_single_labels_and_have_no_file(trees, tmp_path):
    classes = np.array(["low", "mid", "high"])[np.digitize(X[:, 0], [-0.5, 0.5])]
    model = fitted(trees, X, classes)
    assert model.score(X, classes) > 0.9
    np.testing.assert_allclose(model.predict_proba(X).sum(1), 1)
    assert fitted(trees, X, MISSING[:, :1]).predict(UNSEEN).shape == (100, 1)
    with pytest.raises(TypeError, match="expected no classifiers of other libraries"):
        save(model, tmp_path / "model")


@pytest.mark.parametrize("trees", TREES)
def test_trees_stand_under_a_joint_head_and_see_missing_labels(trees):
    model = JointClassifier(trees, cv=2, random_state=0).fit(X, MISSING)
    assert isinstance(model.base_, type(trees))
    assert model.score(UNSEEN, TRUTH) > 0.4


def test_the_automatic_choice_tries_trees_with_missing_labels():
    families = ["forest", *(["label boosting"] if boosting.is_installed() else [])]
    found = candidates("macro_f1", 4, is_sparse=False, families=families, seed=0)
    kinds = (LabelForestClassifier, LabelBoostingClassifier)
    own = [each for each in found if isinstance(each.pipeline[-1], kinds)]
    assert {each.family for each in own} == {*families}
    for each in own[-2:]:
        pipeline = each.unfitted().fit(X, MISSING)
        present = beliefs(pipeline, UNSEEN)
        np.testing.assert_allclose(marginals(present), pipeline.predict_proba(UNSEEN), atol=1e-6)


@pytest.mark.parametrize("kind", [ConformalClassifier, JointConformalClassifier])
def test_rows_with_missing_labels_are_learned_from_and_not_held_out(kind, monkeypatch):
    held: list[np.ndarray] = []
    monkeypatch.setattr(kind, "_threshold", lambda self, X, labels: held.append(labels) or -1.0)
    kind(NETWORK, coverage=0.6, random_state=0).fit(X, MISSING)
    assert len(held[0]) == np.ceil(KNOWN.all(1).sum() / 4)
    assert not np.isnan(held[0]).any()
    with pytest.raises(ValueError, match="got 1 instances without missing labels"):
        kind(NETWORK, coverage=0.6).fit(X[:30], INCOMPLETE)


def test_boosting_names_its_extra_where_xgboost_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "xgboost", None)
    with pytest.raises(ModuleNotFoundError, match=r"lmbm-torch\[boosting\]"):
        LabelBoostingClassifier().fit(X, Y)


PUBLIC = {name for name in estimators.__all__ if isinstance(getattr(estimators, name), type)}
# Of positions, of nodes and of classes; of AutoLabelClassifier see test_automatic_missing.
OTHERS = {
    "AutoLabelClassifier",
    *("ChainCRF", "ChainSVM", "HiddenMarkovClassifier", "MaximumEntropyMarkovClassifier"),
    *("GraphClassifier", "GridClassifier", "KernelLogisticRegression", "MultiClassSVM"),
}
NETWORK = LMSBNClassifier(random_state=0)
GIVEN: dict[str, dict[str, Any]] = {
    "ConditionalRBMClassifier": {"num_hidden": 2, "max_iter": 3, "tol": 1e9},
    "ConformalClassifier": {"estimator": NETWORK, "coverage": 0.6},
    "ConstrainedClassifier": {"estimator": NETWORK},
    "HierarchicalClassifier": {"estimator": FOREST, "hierarchy": {1: 0, 2: 1}, "scope": "parent"},
    "IndependentLabelsClassifier": {"estimator": LogisticRegression()},
    "JointClassifier": {"base": IndependentLabelsClassifier(LogisticRegression()), "cv": 2},
    "JointConformalClassifier": {"estimator": NETWORK, "coverage": 0.6},
    "LMSBNEnsembleClassifier": {"num_members": 2},
    "LabelForestClassifier": {"num_trees": 10},
    "ProbabilisticClassifierChain": {"estimator": LogisticRegression()},
    "RiskControlledClassifier": {"estimator": NETWORK, "risk": "false_negatives", "level": 0.3},
    "ThresholdTunedClassifier": {"cv": 2},
    **{f"{name}ClassifierCV": {"Cs": [0.1, 1.0], "cv": 2} for name in ("LMBM", "LMSBN", "StructuralSVM")},
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", sorted(PUBLIC - OTHERS))
def test_every_classifier_of_label_vectors_takes_missing_labels(name):
    if name == "LabelBoostingClassifier" and not boosting.is_installed():
        pytest.skip("the extra 'boosting' is not installed: no xgboost")
    kind, rows, truth = getattr(estimators, name), X[:80], Y[:80, :3]
    if name == "HierarchicalClassifier":
        truth = np.minimum.accumulate(truth, 1)
    labels = np.where(KNOWN[:80, :3], truth, np.nan)
    options = dict(GIVEN.get(name, {}))
    if "random_state" in inspect.signature(kind).parameters:
        options["random_state"] = 0
    rows = expit(3 * rows[:, :3]) if name == "JointHead" else rows
    model = kind(**options).fit(rows, labels)
    # Of constant answers at most .7 are right.
    assert (model.predict(rows) == truth).mean() > 0.8
    assert model.score(rows, labels) > 0.4
