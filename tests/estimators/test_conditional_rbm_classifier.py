"""Conditional RBMs as a classifier: scikit-learn's checks, hidden units, what is known or missing."""

from __future__ import annotations

import pickle
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.utils.estimator_checks import parametrize_with_checks
from sweeps import thorough

from lmbm_torch.estimators import ConstrainedClassifier
from lmbm_torch.estimators.machines import conditional_rbm
from lmbm_torch.estimators.machines.conditional_rbm import OBJECTIVES, ConditionalRBMClassifier
from lmbm_torch.inference.common.limits import LIMITS
from lmbm_torch.inference.enumeration import exact
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


RULES = ["label_0 -> label_1", "at_most_one(label_2, label_3)"]
EVERYTHING = np.array([*product([0, 1], repeat=5)])
ALLOWED = (EVERYTHING[:, 0] <= EVERYTHING[:, 1]) & (EVERYTHING[:, 2] + EVERYTHING[:, 3] < 2)


def dependent(**settings: Any) -> tuple[np.ndarray, ConditionalRBMClassifier]:
    """Features, and a classifier of five labels that depend on each other, by their marginals' modes."""
    random = np.random.default_rng(0)
    X = random.normal(size=(150, 3))
    noise = random.normal(size=(150, 5)) + 2 * random.normal(size=(150, 1))
    Y = (X @ random.normal(size=(3, 5)) + noise > 0).astype(int)
    settings = {**SMALL, "decoder": "matched", **settings}
    return X[:40], ConditionalRBMClassifier(**settings).fit(X, Y)


def expected_right(probability: np.ndarray) -> np.ndarray:
    """Of every labelling, (instances, labellings)."""
    return np.where(EVERYTHING == 1, probability[:, None], 1 - probability[:, None]).sum(-1)


def given_rules(model: ConditionalRBMClassifier, X: np.ndarray) -> np.ndarray:
    """Each label's probability given that the rules are obeyed, by all label vectors."""
    energy = model.energy(X)
    scores = torch.stack(
        [-energy.free_energy(torch.from_numpy(row).expand(len(X), -1)) for row in EVERYTHING]
    )
    weights = scores.masked_fill(torch.from_numpy(~ALLOWED)[:, None], -torch.inf).softmax(0)
    return weights.numpy().T @ EVERYTHING


@pytest.mark.parametrize("objective", ["mle", "mle_bp", "mle_mf"])
def test_several_modes_are_the_best_by_the_marginals(objective):
    X, model = dependent(objective=objective)
    found = model.decode(X, top_k=4)
    worth = expected_right(model.predict_proba(X))
    np.testing.assert_allclose(found.objective, -np.sort(-worth, 1)[:, :4])
    place = found.labels.numpy() @ (2 ** np.arange(4, -1, -1))
    np.testing.assert_allclose(found.objective, np.take_along_axis(worth, place, 1))
    assert found.status.exact.all() == (objective == "mle")
    best = model.decode(X)
    assert torch.equal(found.labels[:, 0], best.labels)
    torch.testing.assert_close(found.objective[:, 0], best.objective)


@pytest.mark.parametrize("objective", ["mle", "mle_bp"])
def test_modes_under_rules_get_the_most_labels_right_given_the_rules(objective):
    X, model = dependent(objective=objective)
    worth = np.where(ALLOWED, expected_right(given_rules(model, X)), -np.inf)
    wrapped = ConstrainedClassifier(model, RULES)
    wrapped.classes_, wrapped.label_names_, wrapped.estimator_ = model.classes_, model.label_names_, model
    for top_k in (1, 3):
        for found in (model.decode(X, top_k=top_k, constraints=RULES), wrapped.decode(X, top_k=top_k)):
            place = found.labels.numpy().reshape(len(X), top_k, 5) @ (2 ** np.arange(4, -1, -1))
            objectives = found.objective.numpy().reshape(len(X), top_k)
            np.testing.assert_allclose(objectives, -np.sort(-worth, 1)[:, :top_k])
            np.testing.assert_allclose(objectives, np.take_along_axis(worth, place, 1))
            assert found.status.exact.all()
    assert (model.predict(X)[:, 0] > model.predict(X)[:, 1]).any(), "else rules are not needed"


def test_of_many_labels_rules_hold_the_answer_alone_and_nothing_is_called_exact(monkeypatch):
    X, model = dependent()
    monkeypatch.setattr(conditional_rbm, "LIMITS", replace(LIMITS, enumerable=4))
    worth = np.where(ALLOWED, expected_right(model.predict_proba(X)), -np.inf)
    found = model.decode(X, constraints=RULES)
    np.testing.assert_allclose(found.objective, worth.max(1))
    assert not found.status.exact.any()
    assert (found.objective <= model.decode(X).objective + 1e-12).all()
    # Of no rules nothing is disregarded.
    assert model.decode(X, constraints=[]).status.exact.all()


def test_a_label_that_is_held_is_no_more_certain_for_that():
    X, model = dependent()
    probability = model.predict_proba(X)
    np.testing.assert_allclose(model.decision_function(X), 2 * probability - 1, atol=1e-12)
    model.constraints = RULES
    worth = np.where(ALLOWED, expected_right(model.predict_proba(X)), -np.inf)
    best = EVERYTHING[worth.argmax(1)]
    others = np.stack(
        [np.where(EVERYTHING[:, i] != best[:, i, None], worth, -np.inf).max(1) for i in range(5)]
    )
    margins = (2 * best - 1) * (worth.max(1) - others).T
    np.testing.assert_allclose(model.decision_function(X), margins, atol=1e-12)


@pytest.mark.parametrize("objective", ["lssvm", "mssvm"])
def test_propagation_to_a_map_finds_one_labelling(objective):
    X, model = dependent(objective=objective)
    with pytest.raises(ValueError, match=r"top_k: expected 1, because .* \(decoder='exact' finds several"):
        model.decode(X, top_k=2)
    several = model.set_params(decoder="exact").decode(X, top_k=2)
    assert (several.objective[:, 0] > several.objective[:, 1]).all()


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
