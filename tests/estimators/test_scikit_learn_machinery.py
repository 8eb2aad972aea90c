"""What scikit-learn's tools ask of classifiers of label matrices: targets, folds, rankings, pipelines."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import KFold, cross_val_predict, cross_val_score
from sklearn.multioutput import MultiOutputClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier
from strategies.label_problems import random_inputs
from sweeps import slow

from lmbm_torch.estimators import (
    AutoLabelClassifier,
    ConditionalRBMClassifier,
    LMBMClassifier,
    LMSBNClassifier,
    LMSBNEnsembleClassifier,
    StructuralSVMClassifier,
    ThresholdTunedClassifier,
)
from lmbm_torch.estimators.common.baselines import LabelPowersetSVM
from lmbm_torch.inference.enumeration import exact

X, Y = random_inputs(0, 40, 3, 4)
CLASSIFIERS: dict[str, Any] = {
    "network": LMSBNClassifier(random_state=0),
    "kernel network": LMSBNClassifier(kernel="rbf", random_state=0),
    "thresholds": ThresholdTunedClassifier(LMSBNClassifier(random_state=0), cv=2, max_cycles=1),
    "ensemble": LMSBNEnsembleClassifier(num_members=2, random_state=0),
    "machine": LMBMClassifier(random_state=0),
    "structural": StructuralSVMClassifier(random_state=0),
    "restricted": ConditionalRBMClassifier(num_hidden=2, max_iter=5, random_state=0),
}
every = pytest.mark.parametrize("classifier", CLASSIFIERS.values(), ids=CLASSIFIERS.keys())
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


@every
@pytest.mark.parametrize("method", ["predict_proba", "decision_function"])
@pytest.mark.parametrize("labels", [slow(2), 4])
def test_held_out_predictions_come_in_the_order_of_the_instances(classifier, method, labels):
    if not hasattr(classifier, method):
        pytest.skip("probabilities of calibrated ones alone")
    folds, y = KFold(2), Y[:, :labels].astype(int)
    found = cross_val_predict(clone(classifier), X, y, cv=folds, method=method)
    assert found.shape == y.shape
    for train, test in folds.split(X):
        expected = getattr(clone(classifier).fit(X[train], y[train]), method)(X[test])
        np.testing.assert_allclose(found[test], expected)


@pytest.mark.parametrize("scoring", ["average_precision", "roc_auc"])
@pytest.mark.parametrize("labels", [2, 4])
def test_rankings_are_scored(scoring, labels):
    folds, y = KFold(2), Y[:, :labels].astype(int)
    scores = cross_val_score(CLASSIFIERS["network"], X, y, cv=folds, scoring=scoring)
    by_chance = 0.5 if scoring == "roc_auc" else np.array([y[test].mean() for _, test in folds.split(X)])
    assert (scores > by_chance + 0.1).all()


@every
def test_decision_says_what_is_predicted_and_by_how_much(classifier):
    fitted = clone(classifier).fit(X, Y)
    margins, found = fitted.decision_function(X), fitted.decode(X)
    np.testing.assert_array_equal(margins > 0, found.labels.numpy() == 1)
    for label in range(Y.shape[1]):
        held = np.full(Y.shape, np.nan)
        held[:, label] = 1 - found.labels[:, label]
        other = fitted.decode(X, known=held)
        np.testing.assert_array_equal(other.labels[:, label], held[:, label])
        loss = (other.objective - found.objective).abs().numpy()
        np.testing.assert_allclose(np.abs(margins[:, label]), loss)


@every
@pytest.mark.parametrize("count", [2, 3])
def test_decision_about_classes_ranks_them_as_predict_does(classifier, count):
    y = np.array(["a", "b", "c"])[(Y[:, 0] + Y[:, 1] * (count - 2)).astype(int)]
    fitted = clone(classifier).fit(X, y)
    margins, classes = fitted.decision_function(X), fitted.classes_
    best = margins.argmax(1) if count == 3 else (margins > 0).astype(int)
    np.testing.assert_array_equal(classes[best], fitted.predict(X))


OTHERS = {
    "signs": lambda y: 2 * y.astype(int) - 1,
    "one and two": lambda y: y + 1,
    "texts": lambda y: np.where(y == 1, "yes", "no"),
    "texts of each label": lambda y: np.array([["off", "on"], ["a", "b"], ["x", "y"], ["f", "m"]], object)[
        range(4), y.astype(int)
    ],
}


@every
@pytest.mark.parametrize("values", OTHERS.values(), ids=OTHERS.keys())
def test_labels_of_any_two_values(classifier, values):
    y = values(Y)
    plain, other = clone(classifier).fit(X, Y), clone(classifier).fit(X, y)
    predicted = other.predict(X)
    np.testing.assert_array_equal(predicted, values(plain.predict(X)))
    peer = MultiOutputClassifier(DecisionTreeClassifier()).fit(X, y)
    for own, theirs in zip(other.classes_, peer.classes_, strict=True):
        np.testing.assert_array_equal(own, theirs)
    assert other.score(X, y) == plain.score(X, Y) == (predicted == y).all(1).mean()
    np.testing.assert_array_equal(other.decision_function(X), plain.decision_function(X))
    assert other.predict_names(X) == plain.predict_names(X)


@pytest.mark.parametrize(
    "classifier", [LabelPowersetSVM(), AutoLabelClassifier(time_budget=1, cv=2, random_state=0)]
)
def test_labels_of_two_values_elsewhere(classifier):
    assert {*clone(classifier).fit(X, 2 * Y - 1).predict(X).ravel().tolist()} == {-1, 1}


def test_missing_labels_of_other_values():
    y = np.where(Y == 1, "yes", "no").astype(object)
    y[0, 0], y[3, 2] = None, np.nan
    coded = Y.copy()
    coded[0, 0] = coded[3, 2] = np.nan
    text, plain = (LMSBNClassifier(random_state=0).fit(X, each) for each in (y, coded))
    np.testing.assert_array_equal(text.coef_, plain.coef_)


def test_frames_of_texts():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(np.where(Y == 1, "yes", "no"), columns=list("abcd"))
    fitted = LMSBNClassifier(random_state=0).fit(X, frame)
    assert fitted.label_names_ == tuple("abcd")
    plain = LMSBNClassifier(random_state=0).fit(X, Y)
    np.testing.assert_array_equal(fitted.predict(X), np.where(plain.predict(X) == 1, "yes", "no"))


def test_other_values_are_refused():
    three = np.where(Y == 1, "yes", "no").astype(object)
    three[0, 1] = "maybe"
    with pytest.raises(ValueError, match="y: expected two values of label 1, got 3"):
        LMSBNClassifier().fit(X, three)
    for strange in (Y + (Y == 1) * (np.arange(4) == 1), Y / 2, Y * 1.5):
        with pytest.raises(ValueError, match="y: expected 0"):
            LMSBNClassifier().fit(X, strange)


@pytest.mark.parametrize(
    ("classifier", "routine"),
    [
        (LMBMClassifier(), lambda energy: exact.decode_hinge(energy, 1.0, top_k=3)),
        (StructuralSVMClassifier(), lambda energy: exact.decode(energy, top_k=3)),
    ],
    ids=["machine", "structural"],
)
def test_the_best_few_are_those_of_enumeration(classifier, routine):
    fitted = clone(classifier).fit(X, Y)
    found, expected = fitted.decode(X, top_k=3), routine(fitted.energy(X))
    np.testing.assert_array_equal(found.labels, expected.labels)
    np.testing.assert_allclose(found.objective, expected.objective)
    np.testing.assert_array_equal(fitted.decode(X, top_k=3).labels[:, 0], fitted.predict(X))
    fitted.set_params(decoder="lp_relaxation")
    with pytest.raises(ValueError, match="top_k: expected 1 with the decoder 'lp_relaxation', got 3"):
        fitted.decode(X, top_k=3)


@pytest.mark.parametrize("kernel", ["linear", "rbf"])
def test_unseeded_orderings_are_always_the_same(kernel):
    # Labels that are predicted about equally well: other folds order them otherwise.
    rows, labels = random_inputs(5, 40, 3, 12)
    fits = []
    for seed in range(4):
        np.random.seed(seed)  # noqa: NPY002
        fits.append(LMSBNClassifier(kernel=kernel, max_iter=5).fit(rows, labels).ordering_)
    assert all((fit == fits[0]).all() for fit in fits)
    seeded = [LMSBNClassifier(kernel=kernel, random_state=s).fit(rows, labels).ordering_ for s in range(4)]
    given = LMSBNClassifier(kernel=kernel, max_iter=5, ordering=np.arange(12)).fit(rows, labels)
    np.testing.assert_array_equal(given.ordering_, range(12))
    assert any((fit != seeded[0]).any() for fit in seeded)


def test_classes_of_earlier_versions_are_read():
    fitted = LMSBNClassifier(random_state=0).fit(X, Y)
    expected = fitted.predict(X), fitted.predict_names(X)
    fitted.classes_ = [np.array([0, 1]) for _ in range(Y.shape[1])]
    np.testing.assert_array_equal(fitted.predict(X), expected[0])
    assert fitted.predict_names(X) == expected[1]


def test_names_behind_a_pipeline():
    pipe = make_pipeline(StandardScaler(), LMSBNClassifier(random_state=0)).fit(X, Y)
    names = pipe[-1].predict_names(pipe[:-1].transform(X))
    expected = [tuple(f"label_{i}" for i in np.flatnonzero(row)) for row in pipe.predict(X)]
    assert names == expected


@every
def test_signatures_are_annotated(classifier):
    for method in (classifier.fit, classifier.predict):
        signature = inspect.signature(method)
        assert signature.return_annotation is not signature.empty
        assert all(each.annotation is not each.empty for each in signature.parameters.values())
