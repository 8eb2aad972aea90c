"""Answers of classifiers under rules: allowed, the best of what is, and saved with the rules."""

from __future__ import annotations

from itertools import product

import numpy as np
import pandas as pd
import pytest
from problems.under_rules import NAMES, RULES, X, Y
from scipy import sparse
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression

from lmbm_torch import load
from lmbm_torch.estimators import (
    ChainCRF,
    ConditionalRBMClassifier,
    ConstrainedClassifier,
    LMBMClassifier,
    LMSBNClassifier,
    LMSBNClassifierCV,
    LMSBNEnsembleClassifier,
    ProbabilisticClassifierChain,
    StructuralSVMClassifier,
    ThresholdTunedClassifier,
)
from lmbm_torch.estimators.common import targets
from lmbm_torch.estimators.wrappers import constrained
from lmbm_torch.protocol import Capabilities

ESTIMATORS = [
    LMSBNClassifier(random_state=0),
    LMSBNClassifier(kernel="rbf", random_state=0),
    LMSBNEnsembleClassifier(LMSBNClassifier(random_state=0), num_members=2, random_state=0),
    LMSBNClassifierCV(LMSBNClassifier(random_state=0), Cs=[1.0], cv=2),
    ThresholdTunedClassifier(LMSBNClassifier(random_state=0), cv=2, max_cycles=1, num_steps=3),
    LMBMClassifier(random_state=0),
    LMBMClassifier(decoder="exact", random_state=0),
    StructuralSVMClassifier(random_state=0),
    StructuralSVMClassifier(graph="chain", random_state=0),
    ConditionalRBMClassifier(num_hidden=2, max_iter=5, random_state=0),
    ProbabilisticClassifierChain(LogisticRegression(), random_state=0),
]


def frame(labels):
    return pd.DataFrame(labels, columns=NAMES)


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda each: type(each).__name__)
def test_answers_are_the_best_allowed_ones(estimator):
    model = ConstrainedClassifier(estimator, RULES).fit(X[:50], frame(Y[:50]))
    everything = np.array(list(product([0, 1], repeat=4)))
    sun, rain, city, field = everything.T
    allowed = everything[(sun + rain < 2) & (city + field < 2) & ((rain == 0) | (city + field > 0))]
    found = model.decode(X[50:])
    objectives = np.array(
        [
            model.estimator_.decode(X[50:], known=np.tile(each, (30, 1)).astype(float)).objective
            for each in allowed
        ]
    )
    best = objectives.min(0) if model.estimator_.capabilities.minimises else objectives.max(0)
    np.testing.assert_allclose(found.objective, best, atol=1e-9)
    assert (allowed[:, None] == model.predict(X[50:])).all(-1).any(0).all()
    # Without the classifier around it, too, and several.
    known = np.full((30, 4), np.nan)
    known[:, 0] = 0
    for given, obeying in ((None, allowed), (known, allowed[allowed[:, 0] == 0])):
        several = model.estimator_.decode(X[50:], given, 3, RULES)
        each = objectives[[row for row, labels in enumerate(allowed) if labels.tolist() in obeying.tolist()]]
        each = np.sort(each, 0)[:3] if model.estimator_.capabilities.minimises else -np.sort(-each, 0)[:3]
        np.testing.assert_allclose(several.objective, each.T, atol=1e-9)
    # Some answers had to change.
    changed = [bool(rules) for rules in model.binding_rules(X[50:])]
    assert 0 < sum(changed) < 30
    np.testing.assert_array_equal(
        np.array(changed), (model.estimator_.decode(X[50:]).labels != found.labels).any(1)
    )


def test_rules_survive_saving(tmp_path):
    model = ConstrainedClassifier(LMSBNClassifier(random_state=0), RULES).fit(X, frame(Y))
    model.save(tmp_path / "model.safetensors")
    again = load(tmp_path / "model.safetensors")
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    assert again.binding_rules(X[:5]) == model.binding_rules(X[:5])


def test_training_notes_which_rules_are_broken():
    labels = Y.astype(float)
    labels[0, 0] = np.nan
    model = ConstrainedClassifier(LMSBNClassifier(random_state=0), RULES).fit(X, frame(labels))
    complete = Y[1:].astype(bool)
    expected = {
        RULES[0]: (complete[:, 0] & complete[:, 1]).sum(),
        RULES[1]: (complete[:, 2] & complete[:, 3]).sum(),
        RULES[2]: (complete[:, 1] & ~complete[:, 2] & ~complete[:, 3]).sum(),
    }
    assert model.num_violations_ == expected


def test_a_hierarchy_is_obeyed_by_mapping_and_by_path():
    estimator = LMSBNClassifier(random_state=0)
    by_mapping = ConstrainedClassifier(estimator, hierarchy={"label_1": "label_0", "label_3": "label_1"})
    found = by_mapping.fit(X, Y).predict(X)
    assert (found[:, 1] <= found[:, 0]).all()
    assert (found[:, 3] <= found[:, 1]).all()
    paths = pd.DataFrame(Y, columns=["1", "1/1", "2", "1/1/1"])
    by_path = ConstrainedClassifier(estimator, hierarchy="/").fit(X, paths)
    np.testing.assert_array_equal(by_path.predict(X), found)


def test_known_labels_and_several_labellings():
    model = ConstrainedClassifier(LMBMClassifier(random_state=0), RULES).fit(X, frame(Y))
    known = np.full((80, 4), np.nan)
    known[:, 1] = 1
    found = model.predict(X, known=known)
    assert (found[:, 1] == 1).all()
    assert (found[:, 0] == 0).all()
    assert (found[:, 2:].sum(1) == 1).all()
    several = model.decode(X[:5], top_k=3)
    assert several.labels.shape == (5, 3, 4)
    assert (several.objective.diff(dim=1) >= 0).all()
    known[:, 0] = 1
    with pytest.raises(ValueError, match=r"known\[0\]: .*sun -> not rain"):
        model.predict(X, known=known)


def test_chains_of_two_texts_take_rules_and_chains_of_three_do_not():
    chain = ProbabilisticClassifierChain(LogisticRegression(max_iter=1000), random_state=0)
    texts = np.where(Y, "yes", "no")
    chain.fit(X, texts)
    assert not chain.decode(X, constraints="not label_0").labels[:, 0].any()
    chain.fit(X, np.where(np.arange(len(Y))[:, None] == 0, "maybe", texts))
    with pytest.raises(ValueError, match="constraints: expected None, because some label has more"):
        chain.decode(X, constraints="not label_0")


class Stranger:
    """Decodes, but predicts something else, and takes no rules."""

    capabilities = Capabilities(predicts_by_decode=False)

    def decode(self, X, known=None):
        raise AssertionError("refused before")


@pytest.mark.parametrize(
    ("estimator", "rules", "labels", "error", "message"),
    [
        (
            LogisticRegression(),
            RULES,
            frame(Y),
            TypeError,
            "estimator: expected a classifier of label matrices",
        ),
        (ChainCRF(), RULES, frame(Y), TypeError, "estimator: expected a classifier of label matrices"),
        (Stranger(), RULES, frame(Y), ValueError, "estimator: expected an estimator whose predict"),
        (
            LMSBNClassifier(),
            RULES,
            Y,
            ValueError,
            "expected names of labels, got 'rain' in 'sun -> not rain'",
        ),
        (LMSBNClassifier(), RULES, Y[:, 0], ValueError, "y: expected a label matrix"),
        (LMSBNClassifier(), ["sun", "not sun"], frame(Y), ValueError, "contradiction: sun; not sun"),
        (LMSBNClassifier(), 3, frame(Y), ValueError, "'constraints' parameter"),
    ],
)
def test_what_cannot_be_fitted_is_refused_before_training(estimator, rules, labels, error, message):
    with pytest.raises(error, match=message):
        ConstrainedClassifier(estimator, rules).fit(X, labels)


def test_sparse_labels_are_taken_and_answered_as_the_estimator_does(monkeypatch):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 4))
    Y = (X @ rng.normal(size=(4, 6)) > 0.3).astype(int)
    rules = ["label_0 -> not label_1", "at_most(2, label_2, label_3, label_4)"]
    base = LMSBNClassifier(max_parents=2, sparse_output=True, random_state=0)
    dense = ConstrainedClassifier(clone(base).set_params(sparse_output=False), rules).fit(X, Y)
    monkeypatch.setattr(targets, "VALUES_AT_ONCE", 7 * 6)
    whole, fit = [], LMSBNClassifier.fit
    monkeypatch.setattr(LMSBNClassifier, "fit", lambda self, X, y: whole.append(y) or fit(self, X, y))
    monkeypatch.setattr(targets, "dense", _refusing_more_than_rows(7, targets.dense))
    monkeypatch.setattr(constrained, "dense", targets.dense)
    model = ConstrainedClassifier(base, rules).fit(X, sparse.csr_array(Y))
    assert sparse.issparse(whole[0])
    assert model.num_violations_ == dense.num_violations_
    assert len(model.num_violations_) == 2
    found = model.predict(X)
    assert isinstance(found, sparse.csr_array)
    assert np.array_equal(found.toarray(), dense.predict(X))
    assert (found.toarray() != model.estimator_.predict(X).toarray()).any()
    known = np.full(Y.shape, np.nan)
    known[:, 1] = 1
    assert (model.predict(X, known).toarray()[:, :2] == [0, 1]).all()
    # What the estimator does not answer sparse is not.
    assert isinstance(dense.predict(X), np.ndarray)


def _refusing_more_than_rows(most: int, dense):
    def checked(labels):
        assert not sparse.issparse(labels) or labels.shape[0] <= most
        return dense(labels)

    return checked


def test_labels_without_a_complete_row_break_no_rule():
    random = np.random.default_rng(0)
    X = random.normal(size=(30, 3))
    Y = (X > 0).astype(float)
    Y[np.arange(30), np.arange(30) % 3] = np.nan
    model = ConstrainedClassifier(LMSBNClassifier(random_state=0), "label_0 -> label_1").fit(X, Y)
    assert model.num_violations_ == {}
    labels = model.predict(X)
    assert (labels[:, 0] <= labels[:, 1]).all()
