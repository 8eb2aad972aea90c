"""Members with a kernel share kernel values and starts, and are the networks that they would be alone."""

from __future__ import annotations

from typing import Any

import joblib
import numpy as np
import pytest
from sklearn.base import clone
from strategies.label_problems import random_inputs

from lmbm_torch.estimators import LMSBNClassifier, LMSBNEnsembleClassifier
from lmbm_torch.estimators.networks import network_training

RBF: dict[str, Any] = {"kernel": "rbf", "gamma": 0.4}


def copied(estimator: Any) -> Any:
    return clone(estimator)


def test_members_are_the_networks_that_are_learned_one_by_one():
    features, labels = random_inputs(3, 120, 4, 6)
    base = LMSBNClassifier(3.0, tol=1e-6, ordering="index", **RBF)
    ensemble = LMSBNEnsembleClassifier(base, num_members=4, random_state=0).fit(features, labels)
    for member in ensemble.members_:
        assert member.duality_gap_ <= 1e-6
        alone = copied(member).set_params(ordering=member.ordering_).fit(features, labels)
        assert alone.ordering_.tolist() == member.ordering_.tolist()
        assert member.objective_ == pytest.approx(alone.objective_, rel=3e-6)
        np.testing.assert_allclose(member.parent_coef_, alone.parent_coef_, atol=0.02)
        np.testing.assert_allclose(member.predict_proba(features), alone.predict_proba(features), atol=0.01)
    assert len({tuple(member.ordering_) for member in ensemble.members_}) == 4


def test_every_label_of_every_member_reaches_the_tolerance(monkeypatch):
    gaps, learn = [], network_training.solved

    def noted(settings, dual, **named):
        problems, state = dual.problem, learn(settings, dual, **named)
        weights = state.weights
        primal, dual = problems.primal(weights), problems.dual(state.dual_coef, weights)
        gaps.append((primal - dual) / primal)
        return state

    monkeypatch.setattr(network_training, "solved", noted)
    features, labels = random_inputs(3, 120, 4, 6)
    LMSBNEnsembleClassifier(LMSBNClassifier(3.0, **RBF), random_state=0).fit(features, labels)
    assert len(gaps) == 10
    # As the states' values say, but for rounding.
    assert np.max(gaps) <= 1e-3 * (1 + 1e-9)


def test_labels_with_the_same_parents_are_solved_once(monkeypatch):
    """Of nine random members four share their halves, as do the next four."""
    rounds, learn = [], network_training.solved

    def noted(settings, dual, **named):
        state = learn(settings, dual, **named)
        rounds.append(state.num_iters)
        return state

    monkeypatch.setattr(network_training, "solved", noted)
    features, labels = random_inputs(3, 120, 4, 6)
    ensemble = LMSBNEnsembleClassifier(LMSBNClassifier(3.0, **RBF), random_state=0).fit(features, labels)
    is_free = [False, *([False, False, True, True] * 2), False]
    assert [count == 0 for count in rounds] == is_free
    for place in np.flatnonzero(is_free):
        member = ensemble.members_[place]
        alone = copied(member).fit(features, labels)
        assert alone.ordering_.tolist() == member.ordering_.tolist()
        assert member.objective_ == pytest.approx(alone.objective_, rel=2e-3)


@pytest.mark.parametrize(
    ("settings", "base", "are_shared"),
    [({}, RBF, True), ({}, {}, False), ({"orders": "random"}, RBF, False), ({"orders": "halves"}, {}, True)],
)
def test_orders_share_halves_where_asked_for_or_with_a_kernel(settings, base, are_shared):
    features, labels = random_inputs(3, 40, 4, 6)
    ensemble = LMSBNEnsembleClassifier(LMSBNClassifier(**base), num_members=5, random_state=0, **settings)
    firsts = [frozenset(member.ordering_[:3]) for member in ensemble.fit(features, labels).members_[1:]]
    assert (len(set(firsts)) == 1) == are_shared


FOUND = ("dual_coef_", "support_", "intercept_", "parent_coef_", "mean_loss_", "objective_", "duality_gap_")


@pytest.mark.parametrize("settings", [{}, {"tol": 1e-7, "C": 30.0}])
def test_ensembles_have_the_same_bits_for_any_number_of_workers(settings):
    features, labels = random_inputs(3, 120, 4, 6)
    ensemble = LMSBNEnsembleClassifier(LMSBNClassifier(**RBF, **settings), num_members=3, random_state=0)
    here = copied(ensemble).fit(features, labels).members_
    again = copied(ensemble).fit(features, labels).members_
    with joblib.parallel_config(backend="threading", n_jobs=2):
        there = copied(ensemble).fit(features, labels).members_
    for others in (again, there):
        for one, two in zip(here, others, strict=True):
            for name in FOUND:
                assert np.array_equal(getattr(one, name), getattr(two, name)), name


def test_members_take_weights_of_labels_and_missing_ones_with_them():
    features, labels = random_inputs(3, 120, 4, 6)
    labels = np.where(np.random.default_rng(1).random(labels.shape) < 0.1, np.nan, labels)
    weights = [{0: 1.0, 1: 1.0 + k} for k in range(6)]
    base = LMSBNClassifier(3.0, tol=1e-6, ordering="index", class_weight=weights, parent_scale=0.5, **RBF)
    ensemble = LMSBNEnsembleClassifier(base, num_members=3, random_state=0).fit(features, labels)
    for member in ensemble.members_[1:]:
        alone = copied(member).set_params(ordering=member.ordering_).fit(features, labels)
        assert member.objective_ == pytest.approx(alone.objective_, rel=3e-6)
        np.testing.assert_allclose(member.predict_proba(features), alone.predict_proba(features), atol=0.01)
        assert list(member.model_.state_dict()) == list(alone.model_.state_dict())


@pytest.mark.parametrize("degree", [1, 3])
def test_members_of_other_degrees_are_those_learned_alone(degree):
    features, labels = random_inputs(3, 60, 4, 4)
    base = LMSBNClassifier(3.0, tol=1e-6, degree=degree, **RBF)
    ensemble = LMSBNEnsembleClassifier(base, num_members=3, random_state=0).fit(features, labels)
    for member in ensemble.members_:
        alone = copied(member).set_params(ordering=member.ordering_).fit(features, labels)
        assert member.objective_ == pytest.approx(alone.objective_, rel=3e-6)
        np.testing.assert_array_equal(member.parent_coef_ != 0, alone.parent_coef_ != 0)


def test_members_can_be_fitted_and_changed_by_themselves():
    features, labels = random_inputs(3, 120, 4, 6)
    base = LMSBNClassifier(**RBF, class_weight="balanced")
    ensemble = LMSBNEnsembleClassifier(base, num_members=3, random_state=0).fit(features, labels)
    first, second, _ = ensemble.members_
    before = second.predict(features)
    first.fit(features[:50, :2], labels[:50, :4])
    assert second.n_features_in_ == 4
    assert second.classes_.shape == (6, 2)
    np.testing.assert_array_equal(second.predict(features), before)
    np.testing.assert_array_equal(second.get_params()["ordering"], second.ordering_)
    assert second.get_params()["class_weight"] == "balanced"
