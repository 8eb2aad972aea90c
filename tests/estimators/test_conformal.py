"""Label sets hold the truth as often as they are asked to, whatever the probabilities are."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.ensemble import RandomForestClassifier
from sklearn.multioutput import MultiOutputClassifier
from sklearn.svm import LinearSVC

from lmbm_torch.estimators import ConformalClassifier, LMSBNClassifier


class Guess(ClassifierMixin, BaseEstimator):
    """Probabilities that are the features themselves; nothing is learnt."""

    def fit(self, X, y):
        self.classes_ = [np.array([0, 1])] * y.shape[1]
        return self

    def predict_proba(self, X):
        return np.asarray(X)

    def predict(self, X):
        return (np.asarray(X) > 0.5).astype(int)


def drawn(seed, instances, overconfident):
    """Labels that depend on each other, and probabilities that lie about them."""
    random = np.random.default_rng(seed)
    scores = random.standard_normal((instances, 4)) + random.standard_normal((instances, 1))
    labels = (random.random(scores.shape) < 1 / (1 + np.exp(-scores))).astype(int)
    return 1 / (1 + np.exp(-overconfident * scores)), labels


@pytest.mark.parametrize("overconfident", [0.2, 1.0, 20.0])
@pytest.mark.parametrize("coverage", [0.6, 0.9])
def test_the_truth_lies_between_as_often_as_asked(coverage, overconfident):
    held, shares = 39, []
    for seed in range(100):
        X, Y = drawn(seed, 60, overconfident)
        model = ConformalClassifier(Guess(), coverage=coverage, random_state=seed)
        model = model.set_params(calibration_size=held / 60).fit(X, Y)
        fresh, truth = drawn(1000 + seed, 50, overconfident)
        certain, possible = model.predict_set(fresh)
        assert not (certain & ~possible).any()
        shares.append(((certain <= truth) & (truth <= possible)).all(1).mean())
    error = np.std(shares) / len(shares) ** 0.5
    assert np.mean(shares) >= coverage - 3 * error
    # Sets that hold everything would be right, too. Answers as good as sure are rounded to 0 and 1.
    if overconfident < 20:
        assert np.mean(shares) <= coverage + 1 / (held + 1) + 3 * error


class Noted(Guess):
    """Probabilities that are the features, and the rows that they were asked for last."""

    def predict_proba(self, X):
        self.seen_ = np.asarray(X)
        return self.seen_


@pytest.mark.parametrize(
    ("held", "coverage", "rank"), [(39, 0.9, 4), (9, 0.9, 1), (19, 0.6, 8), (99, 0.97, 3)]
)
def test_of_n_held_out_the_rank_is_that_among_n_and_a_new_one(held, coverage, rank):
    """So many of n + 1 may be less probable; of n it would be one fewer, and sets larger than need be."""
    random = np.random.default_rng(0)
    X = random.uniform(size=(held + 5, 3))
    Y = np.ones(X.shape, int)
    model = ConformalClassifier(Noted(), coverage=coverage, calibration_size=held / len(X), random_state=0)
    model.fit(X, Y)
    held_out = model.estimator_.seen_.min(1)
    assert len(held_out) == held
    assert model.threshold_ == np.sort(held_out)[rank - 1]


def of_threshold(threshold, constraints=None):
    """A classifier whose threshold is given; its probabilities are the features."""
    X = np.random.default_rng(0).uniform(size=(60, 3))
    model = ConformalClassifier(Guess(), constraints=constraints, random_state=0)
    model.fit(X, np.ones(X.shape, int))
    model.threshold_ = threshold
    return model


def test_a_value_as_probable_as_the_threshold_is_possible():
    certain, possible = of_threshold(0.5).predict_set(np.full((1, 3), 0.5))
    assert possible.all()
    assert not certain.any()


def test_of_two_improbable_values_the_better_one_is_kept():
    certain, possible = of_threshold(0.8).predict_set(np.array([[0.6, 0.5, 0.4]]))
    assert certain.tolist() == possible.tolist() == [[True, True, False]]


def test_sets_that_rules_contradict_stay_as_they_are():
    model = of_threshold(0.3, ["label_0 -> label_1", "label_0 -> label_2"])
    certain, possible = model.predict_set(np.array([[0.95, 0.05, 0.5], [0.95, 0.5, 0.5]]))
    assert certain.tolist() == [[True, False, False], [True, True, True]]
    assert possible.tolist() == [[True, False, True], [True, True, True]]


def test_more_coverage_takes_larger_sets():
    X, Y = drawn(0, 400, 1.0)
    before = None
    for coverage in (0.5, 0.8, 0.95):
        certain, possible = (
            ConformalClassifier(Guess(), coverage=coverage, random_state=0).fit(X, Y).predict_set(X)
        )
        if before is not None:
            assert (certain <= before[0]).all()
            assert (possible >= before[1]).all()
        before = certain, possible


@pytest.mark.parametrize(
    "estimator",
    [
        LMSBNClassifier(random_state=0),
        RandomForestClassifier(20, random_state=0),
        MultiOutputClassifier(RandomForestClassifier(20, random_state=0)),
    ],
    ids=["network", "forest", "several"],
)
def test_any_classifier_with_probabilities(estimator):
    random = np.random.default_rng(0)
    X = random.standard_normal((240, 5))
    Y = np.where(X[:, :3] + 0.3 * random.standard_normal((240, 3)) > 0, "yes", "no")
    # A label that is always absent has no column of its own.
    if not isinstance(estimator, LMSBNClassifier):
        Y = np.column_stack([Y, np.where(X[:, 0] > 2, "yes", "no")])
    model = ConformalClassifier(estimator, coverage=0.8, random_state=0).fit(X, Y)
    assert model.predict_proba(X).shape == Y.shape
    assert set(np.unique(model.predict(X))) <= {"yes", "no"}
    certain, possible = model.predict_set(X)
    truth = Y == "yes"
    assert ((certain <= truth) & (truth <= possible)).all(1).mean() >= 0.7
    sure, may = model.predict_set_names(X[:1])[0]
    assert [*sure] == [f"label_{k}" for k in certain[0].nonzero()[0]]
    assert [*may] == [f"label_{k}" for k in (possible & ~certain)[0].nonzero()[0]]


@pytest.mark.filterwarnings("ignore:A column-vector y was passed")
@pytest.mark.parametrize("absent", [False, True])
def test_a_forest_of_a_single_label_is_calibrated_by_it(absent):
    """Its probabilities are those of both values, or of the one that there is, and no list."""
    random = np.random.default_rng(0)
    X = random.standard_normal((400, 3))
    Y = ((X[:, :1] + random.standard_normal((400, 1)) > 0) & (not absent)).astype(int)
    forest = RandomForestClassifier(50, random_state=0)
    model = ConformalClassifier(forest, coverage=0.8, random_state=0).fit(X, Y)
    assert model.predict_proba(X).shape == (400, 1)
    expected = 0.0 if absent else model.estimator_.predict_proba(X)[:, 1]
    np.testing.assert_allclose(model.predict_proba(X)[:, 0], expected)
    certain, possible = model.predict_set(X)
    assert ((certain <= Y) & (possible >= Y)).mean() >= 0.8


def test_too_few_instances_rule_nothing_out_and_say_so():
    X, Y = drawn(0, 40, 1.0)
    with pytest.warns(UserWarning, match=r"coverage=0.95: expected at least 19 held-out instances, got 10"):
        model = ConformalClassifier(Guess(), coverage=0.95, random_state=0).fit(X, Y)
    certain, possible = model.predict_set(X)
    assert not certain.any()
    assert possible.all()


@pytest.mark.parametrize(
    ("settings", "labels", "message"),
    [
        ({"coverage": 1.0}, np.eye(4), "coverage"),
        ({"calibration_size": 0.0}, np.eye(4), "calibration_size"),
        ({}, np.arange(4), "y: expected a label matrix"),
        ({}, np.full((4, 2), np.nan), "y: expected"),
    ],
)
def test_refusals(settings, labels, message):
    with pytest.raises(ValueError, match=message):
        ConformalClassifier(Guess(), **settings).fit(np.zeros((4, 4)), labels)


def test_an_estimator_without_probabilities_is_refused_before_it_learns():
    with pytest.raises(ValueError, match="expected a classifier with predict_proba, got LinearSVC"):
        ConformalClassifier(LinearSVC()).fit(np.eye(9), np.eye(9, 2))


def test_a_share_that_leaves_nothing_to_learn_from_is_refused_by_its_own_name():
    model = ConformalClassifier(LMSBNClassifier(), calibration_size=0.9)
    with pytest.raises(ValueError, match=r"calibration_size=0\.9: expected to leave an instance"):
        model.fit(np.eye(9), np.eye(9, 2))


def test_what_follows_from_rules_is_certain_or_ruled_out_at_the_same_coverage():
    rules = ["label_0 -> label_1", "label_2 -> label_3"]
    X, Y = drawn(0, 2000, 1.0)
    kept = (Y[:, 0] <= Y[:, 1]) & (Y[:, 2] <= Y[:, 3])
    X, Y = X[kept], Y[kept]
    held = ConformalClassifier(Guess(), coverage=0.7, random_state=0, constraints=rules).fit(X[:400], Y[:400])
    free = ConformalClassifier(Guess(), coverage=0.7, random_state=0).fit(X[:400], Y[:400])
    wide, narrow = free.predict_set(X[400:]), held.predict_set(X[400:])
    for one, other in zip(narrow, free.predict_set(X[400:], constraints=rules), strict=True):
        np.testing.assert_array_equal(one, other)
    assert (wide.certain <= narrow.certain).all()
    assert (narrow.possible <= wide.possible).all()
    assert (narrow.possible & ~narrow.certain).sum() < 0.95 * (wide.possible & ~wide.certain).sum()
    between = [((sets.certain <= Y[400:]) & (Y[400:] <= sets.possible)).all(1) for sets in (wide, narrow)]
    np.testing.assert_array_equal(*between)
    # A label that implies another one is certain only where that is.
    possible = narrow.possible[between[1]]
    assert (possible[:, 0] <= possible[:, 1]).all()
    with pytest.raises(ValueError, match="expected names of labels, got 'label_9'"):
        ConformalClassifier(Guess(), constraints="label_9 -> label_0").fit(X, Y)
