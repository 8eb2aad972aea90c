"""Conditional RBMs as a classifier: scikit-learn's checks, hidden units, what is known or missing."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.utils.estimator_checks import parametrize_with_checks

from lmbm_torch.estimators.conditional_rbm import OBJECTIVES, ConditionalRBMClassifier
from lmbm_torch.inference import exact

SMALL: dict[str, Any] = {"num_hidden": 4, "max_iter": 30, "random_state": 0}


@parametrize_with_checks([ConditionalRBMClassifier(num_hidden=4, max_iter=20)])
def test_scikit_learn_s_check(estimator, check):
    check(estimator)


def copies(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Three labels that are all one fair coin where the feature is 0, and given by its sign elsewhere."""
    random = np.random.default_rng(seed)
    X = random.choice([-3.0, 0.0, 3.0], size=(300, 1))
    coin = np.where(X[:, 0] == 0, random.integers(0, 2, 300), X[:, 0] > 0)
    return X, np.repeat(coin[:, None], 3, 1).astype(int)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_every_objective_learns_labels_that_agree(objective):
    X, Y = copies()
    model = ConditionalRBMClassifier(objective=objective, **SMALL).fit(X, Y)
    given = X[:, 0] != 0
    assert (model.predict(X) == Y)[given].all()
    assert len(model.loss_curve_) == model.n_iter_ == 30
    assert model.predict_proba(X).shape == Y.shape


def test_one_label_tells_of_the_others_through_hidden_units():
    X, Y = copies()
    model = ConditionalRBMClassifier(**{**SMALL, "max_iter": 100}).fit(X, Y)
    coins = np.zeros((1, 1))
    for value in (0, 1):
        known = np.array([[np.nan, value, np.nan]])
        assert model.predict(coins, known=known).tolist() == [[value] * 3]
    given = np.array([[3.0], [-3.0]])
    energy, labels = model.energy(given), np.array([[1, 1, 1], [0, 0, 0]])
    expected = -exact.log_partition(energy) - energy.free_energy(torch.from_numpy(labels))
    np.testing.assert_allclose(model.log_prob(given, labels), expected, atol=0.05)


def test_missing_labels_and_weights():
    X, Y = copies()
    missing = Y.astype(float)
    missing[np.random.default_rng(1).random(Y.shape) < 0.3] = np.nan
    model = ConditionalRBMClassifier(**SMALL).fit(X, missing)
    assert (model.predict(X) == Y)[X[:, 0] != 0].all()
    with pytest.raises(ValueError, match="y"):
        ConditionalRBMClassifier(objective="joint_hinge", **SMALL).fit(X, missing)
    flipped = np.concatenate([Y, 1 - Y])
    weights = np.concatenate([np.ones(300), np.full(300, 1e-6)])
    weighted = ConditionalRBMClassifier(**SMALL).fit(np.concatenate([X, X]), flipped, weights)
    assert (weighted.predict(X) == Y)[X[:, 0] != 0].all()


def test_pickle_and_seed():
    X, Y = copies()
    model = ConditionalRBMClassifier(**SMALL).fit(X, Y)
    again = ConditionalRBMClassifier(**SMALL).fit(X, Y)
    np.testing.assert_array_equal(model.predict_proba(X), again.predict_proba(X))
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).predict_proba(X), model.predict_proba(X))


@pytest.mark.parametrize(
    ("setting", "value"),
    [("C", 0.0), ("num_hidden", 0), ("objective", "exact"), ("max_iter", 0), ("learning_rate", -1.0)],
)
def test_refusals(setting, value):
    model = ConditionalRBMClassifier()
    model.set_params(**{setting: value})
    with pytest.raises(ValueError, match=setting):
        model.fit(*copies())
