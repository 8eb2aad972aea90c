"""Conditional RBMs as a classifier: scikit-learn's checks, hidden units, what is known or missing."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.utils.estimator_checks import parametrize_with_checks
from sweeps import thorough

from lmbm_torch.estimators import conditional_rbm
from lmbm_torch.estimators.conditional_rbm import OBJECTIVES, ConditionalRBMClassifier
from lmbm_torch.inference import exact
from lmbm_torch.losses import exact_negative_log_likelihood

SMALL: dict[str, Any] = {"num_hidden": 4, "max_iter": 30, "random_state": 0}


# The check takes 0 and 1 for places in ``classes_``, which has a row for each label.
EXPECTED = {"check_classifier_multioutput": "labels have two classes each"}


@parametrize_with_checks(
    [ConditionalRBMClassifier(num_hidden=4, max_iter=5)], expected_failed_checks=lambda estimator: EXPECTED
)
def test_scikit_learn_s_check(estimator, check):
    check(estimator)


def copies(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Three labels that are all one fair coin where the feature is 0, and given by its sign elsewhere."""
    random = np.random.default_rng(seed)
    X = random.choice([-3.0, 0.0, 3.0], size=(300, 1))
    coin = np.where(X[:, 0] == 0, random.integers(0, 2, 300), X[:, 0] > 0)
    return X, np.repeat(coin[:, None], 3, 1).astype(int)


@pytest.mark.parametrize("objective", thorough(OBJECTIVES, 3))
def test_every_objective_learns_labels_that_agree(objective):
    X, Y = copies()
    model = ConditionalRBMClassifier(objective=objective, **SMALL).fit(X, Y)
    given = X[:, 0] != 0
    assert (model.predict(X) == Y)[given].all()
    assert len(model.loss_curve_) == model.n_iter_ <= 30
    assert model.predict_proba(X).shape == Y.shape


@pytest.mark.parametrize(("objective", "tolerance"), [("mle", 1e-9), ("mle_bp", 0.05)])
def test_one_label_tells_of_the_others_through_hidden_units(objective, tolerance):
    X, Y = copies()
    model = ConditionalRBMClassifier(objective=objective, **{**SMALL, "max_iter": 100}).fit(X, Y)
    coins = np.zeros((1, 1))
    for decoder in ("exact", "matched"):
        model.set_params(decoder=decoder)
        for value in (0, 1):
            known = np.array([[np.nan, value, np.nan]])
            assert model.predict(coins, known=known).tolist() == [[value] * 3]
    given = np.array([[3.0], [-3.0]])
    energy, labels = model.energy(given), np.array([[1, 1, 1], [0, 0, 0]])
    expected = -exact.log_partition(energy) - energy.free_energy(torch.from_numpy(labels))
    np.testing.assert_allclose(model.log_prob(given, labels), expected, atol=tolerance)


@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_exact_likelihood_ends_where_its_gradient_vanishes(missing):
    X, Y = copies()
    Y = np.where(np.random.default_rng(2).random(Y.shape) < missing, np.nan, Y)
    weights = np.random.default_rng(3).uniform(0.5, 1.5, len(X))
    model = ConditionalRBMClassifier(C=0.5, **{**SMALL, "max_iter": 500}).fit(X, Y, weights)
    assert model.objective_ == "mle"
    assert model.n_iter_ < 500
    machine = model.model_.requires_grad_(True)
    losses = exact_negative_log_likelihood(machine(torch.from_numpy(X)), torch.from_numpy(Y))
    loss = torch.from_numpy(weights) @ losses
    assert model.loss_curve_[-1] == pytest.approx(loss.item() / weights.sum())
    assert (np.diff(model.loss_curve_[:5]) < 0).all()
    (0.5 * machine.weights().square().sum() + 0.5 * loss).backward()
    assert all(weight.grad.abs().max() < 0.01 for weight in machine.parameters())


def test_an_exact_likelihood_sums_piece_by_piece(monkeypatch):
    X, Y = copies()
    whole = ConditionalRBMClassifier(**SMALL).fit(X, Y)
    monkeypatch.setattr(conditional_rbm, "INSTANCES_AT_ONCE", 70)
    pieces = ConditionalRBMClassifier(**SMALL).fit(X, Y)
    np.testing.assert_allclose(pieces.loss_curve_[:5], whole.loss_curve_[:5], rtol=1e-9)


def test_the_most_probable_vector_where_labels_are_few_and_the_training_s_inference_elsewhere():
    # Given the feature, vectors 110, 101 and 011 are likelier than 111, though each label is mostly on.
    random = np.random.default_rng(0)
    X, Y = np.ones((400, 1)), np.ones((400, 3), int)
    Y[np.arange(400), random.integers(0, 3, 400)] = 0
    model = ConditionalRBMClassifier(C=10.0, **{**SMALL, "max_iter": 200}).fit(X, Y)
    assert model.predict(X[:1]).sum() == 2
    assert model.set_params(decoder="matched").predict(X[:1]).sum() == 3
    certificate = model.set_params(decoder="exact").decode(X[:1])
    assert bool(certificate.status.exact)
    many = np.repeat(Y, 6, 1)
    model = ConditionalRBMClassifier(num_hidden=2, max_iter=5, random_state=0).fit(X, many)
    modes = (model.marginals(X[:1]).visible > 0.5).long()
    assert torch.equal(model.decode(X[:1]).labels, modes)
    with pytest.raises(ValueError, match="energy: expected at most 22"):
        ConditionalRBMClassifier(decoder="exact", num_hidden=2, max_iter=5).fit(
            X, np.repeat(Y, 8, 1)
        ).predict(X)


def test_a_marginal_hinge_learns_by_the_decoder_that_predicts():
    X, Y = copies()
    start = {"init_std": 3.0, "max_iter": 1, "batch_size": len(X), "num_hidden": 8, "random_state": 0}
    found = {
        decoder: ConditionalRBMClassifier(objective="mssvm", decoder=decoder, **start).fit(X, Y)
        for decoder in ("auto", "exact", "matched")
    }
    losses = {decoder: model.loss_curve_[0] for decoder, model in found.items()}
    assert losses["auto"] == losses["exact"] > losses["matched"]


def test_propagation_takes_over_where_both_sides_are_large():
    X, Y = np.ones((10, 1)), np.tile([0, 1], (10, 6))
    small = ConditionalRBMClassifier(num_hidden=10, max_iter=1).fit(X, Y)
    large = ConditionalRBMClassifier(num_hidden=11, max_iter=1).fit(X, Y)
    assert (small.objective_, large.objective_) == ("mle", "mle_bp")


def test_missing_labels_and_weights():
    X, Y = copies()
    missing = Y.astype(float)
    missing[np.random.default_rng(1).random(Y.shape) < 0.3] = np.nan
    model = ConditionalRBMClassifier(**SMALL).fit(X, missing)
    assert (model.predict(X) == Y)[X[:, 0] != 0].all()
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
    [
        ("C", 0.0),
        ("num_hidden", 0),
        ("objective", "exact"),
        ("decoder", "modes"),
        ("max_iter", 0),
        ("learning_rate", -1.0),
    ],
)
def test_refusals(setting, value):
    model = ConditionalRBMClassifier()
    model.set_params(**{setting: value})
    with pytest.raises(ValueError, match=f"'{setting}' parameter of ConditionalRBMClassifier must be"):
        model.fit(*copies())
