"""The network with a kernel: the linear one through an explicit map, and every way to name a kernel."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import sparse
from sklearn.metrics.pairwise import rbf_kernel
from sklearn.model_selection import cross_val_score
from strategies.label_problems import random_inputs

from lmbm_torch.estimators import (
    KernelLogisticRegression,
    LMSBNClassifier,
    LMSBNEnsembleClassifier,
    MultiClassSVM,
)
from lmbm_torch.estimators.networks import orderings
from lmbm_torch.inference.enumeration import exact
from lmbm_torch.solvers.gram import PrecomputedGram

X, Y = random_inputs(0, 120, 4, 3)
RBF: dict[str, Any] = {"kernel": "rbf", "gamma": 0.4}
TRAIN, TEST = np.arange(0, 120, 2), np.arange(1, 120, 2)


def explicit(gamma: float) -> np.ndarray:
    """Features whose inner products are the kernel's values."""
    values, vectors = np.linalg.eigh(rbf_kernel(X, gamma=gamma))
    return vectors * np.sqrt(values.clip(0))


@pytest.mark.parametrize("degree", [1, 2, 3])
def test_kernel_is_the_linear_network_of_its_feature_map(degree):
    settings: dict[str, Any] = {"C": 3.0, "degree": degree, "ordering": [2, 0, 1], "tol": 1e-9}
    roots = explicit(0.4)
    linear = LMSBNClassifier(**settings).fit(roots[TRAIN], Y[TRAIN])
    kernel = LMSBNClassifier(**RBF, **settings).fit(X[TRAIN], Y[TRAIN])
    np.testing.assert_allclose(kernel.parent_coef_, linear.parent_coef_, atol=1e-3)
    np.testing.assert_allclose(kernel.intercept_, linear.intercept_, atol=1e-3)
    assert kernel.mean_loss_ == pytest.approx(linear.mean_loss_, rel=1e-3)
    np.testing.assert_allclose(kernel.predict_proba(X[TEST]), linear.predict_proba(roots[TEST]), atol=2e-3)


def test_scaled_parents_are_features_scaled_the_other_way():
    scale = 0.25
    # The kernel's constant is 1 either way; the scaled features of the linear network hold what lacks to it.
    roots = np.hstack([explicit(0.4), np.sqrt(1 - scale) * np.ones((120, 1))])
    linear = LMSBNClassifier(3.0 * scale, ordering="index", tol=1e-9).fit(roots / np.sqrt(scale), Y)
    kernel = LMSBNClassifier(3.0, parent_scale=scale, ordering="index", tol=1e-9, **RBF).fit(X, Y)
    np.testing.assert_allclose(kernel.parent_coef_, linear.parent_coef_, atol=1e-3)
    weak = LMSBNClassifier(3.0, parent_scale=1e-6, ordering="index", **RBF).fit(X, Y)
    assert np.abs(weak.parent_coef_).max() < 1e-3 < np.abs(kernel.parent_coef_).max()


NAMED: dict[str, Any] = {
    "rbf": ({"kernel": "rbf", "gamma": 0.3}, lambda X, Z: rbf_kernel(X, Z, 0.3)),
    "poly": (
        {"kernel": "poly", "gamma": 0.3, "kernel_degree": 2, "coef0": 0.5},
        lambda X, Z: (0.3 * X @ Z.T + 0.5) ** 2,
    ),
}


@pytest.mark.parametrize("name", NAMED)
def test_named_precomputed_and_given_kernels_agree(name):
    settings, kernel = NAMED[name]
    # A number, which counts in the features' own units, as what others have made of them does.
    common: dict[str, Any] = {"C": 1.0, "tol": 1e-10, "random_state": 0}
    named = LMSBNClassifier(**settings, **common).fit(X[TRAIN], Y[TRAIN])
    expected = named.predict_proba(X[TEST])
    given = LMSBNClassifier(kernel=kernel, **common).fit(X[TRAIN], Y[TRAIN])
    np.testing.assert_allclose(given.predict_proba(X[TEST]), expected, atol=1e-4)
    matrix = LMSBNClassifier(kernel="precomputed", **common).fit(kernel(X[TRAIN], X[TRAIN]), Y[TRAIN])
    np.testing.assert_allclose(matrix.predict_proba(kernel(X[TEST], X[TRAIN])), expected, atol=1e-4)
    in_rows = LMSBNClassifier(**settings, **common).fit(sparse.csr_array(X[TRAIN]), Y[TRAIN])
    np.testing.assert_allclose(in_rows.predict_proba(sparse.csr_array(X[TEST])), expected, atol=1e-4)
    assert given.ordering_.tolist() == matrix.ordering_.tolist() == named.ordering_.tolist()


def test_only_support_vectors_are_kept_and_decoding_is_exact():
    network = LMSBNClassifier(5.0, random_state=0, **RBF).fit(X, Y)
    assert 0 < len(network.support_) < len(X)
    assert network.dual_coef_.shape == (3, len(network.support_))
    assert network.dual_coef_.any(0).all()
    np.testing.assert_array_equal(network.support_vectors_, X[network.support_])
    assert network.duality_gap_ <= 1e-3
    found, best = network.decode(X), exact.decode_hinge(network.energy(X))
    assert found.status.exact.all()
    torch.testing.assert_close(found.objective, best.objective)
    assert 1 - network.score(X, Y) <= network.error_bound_


def test_missing_labels_weights_and_ensembles():
    labels = np.where(np.random.default_rng(0).random(Y.shape) < 0.2, np.nan, Y)
    weight = np.random.default_rng(1).random(120)
    settings: dict[str, Any] = {"C": 3.0, "tol": 1e-9, "ordering": "index"}
    base, roots = LMSBNClassifier(**settings, **RBF), explicit(0.4)
    network = base.fit(X, labels, weight)
    linear = LMSBNClassifier(**settings).fit(roots, labels, weight)
    np.testing.assert_allclose(network.predict_proba(X), linear.predict_proba(roots), atol=2e-3)
    several: dict[str, Any] = {"num_members": 3, "orders": "halves", "random_state": 0}
    ensemble = LMSBNEnsembleClassifier(base, **several).fit(X, labels, weight)
    theirs = LMSBNEnsembleClassifier(linear, **several).fit(roots, labels, weight)
    np.testing.assert_allclose(ensemble.predict_proba(X), theirs.predict_proba(roots), atol=2e-3)
    labels[:, 0] = np.nan
    with pytest.warns(UserWarning, match="got only missing values of label_0; the value 0"):
        absent = LMSBNClassifier(kernel="rbf").fit(X, labels)
    assert not absent.predict(X)[:, 0].any()
    with pytest.raises(ValueError, match="y: expected at least one known label"):
        LMSBNClassifier(kernel="rbf").fit(X, np.full(Y.shape, np.nan))


def test_cross_validation_slices_precomputed_kernels_on_both_sides():
    matrix = rbf_kernel(X, gamma=0.4)
    network = LMSBNClassifier(kernel="precomputed", ordering="index", tol=1e-6)
    scores = cross_val_score(network, matrix, Y, cv=3)
    named = LMSBNClassifier(ordering="index", tol=1e-6, **RBF)
    np.testing.assert_allclose(scores, cross_val_score(named, X, Y, cv=3), atol=0.03)
    ensemble = LMSBNEnsembleClassifier(network, num_members=2, random_state=0)
    assert cross_val_score(ensemble, matrix, Y, cv=3).mean() > 0.3


def test_linear_kernel_orders_as_linear_classifiers_do(monkeypatch):
    # At its own gap, and in three folds, half of the orderings of four such labels differ by a neighbour.
    monkeypatch.setattr(orderings, "KERNEL_TOL", 1e-3)
    for seed in range(3):
        features, labels = random_inputs(seed, 90, 5, 4)
        gram = PrecomputedGram(torch.from_numpy(features @ features.T))
        order = orderings.f_score(gram, labels, folds=5)
        assert order.tolist() == orderings.f_score(features, labels).tolist()


@pytest.mark.parametrize(
    ("message", "settings"),
    [
        ("'kernel' .* must be a str among .* or a callable. Got 'sigmoid'", {"kernel": "sigmoid"}),
        ("'gamma' .* must be a str among .* or a float .* Got -1.0", {"kernel": "rbf", "gamma": -1.0}),
        ("'parent_scale' .* must be a float", {"kernel": "rbf", "parent_scale": 0.0}),
        ("parent_scale: expected 1 with the linear kernel", {"parent_scale": 2.0}),
        ("solver: expected 'dual_coordinate' with a kernel", {"kernel": "rbf", "solver": "pegasos"}),
        ("'cache_size' .* must be a float", {"kernel": "rbf", "cache_size": 0}),
        ("matrix: expected", {"kernel": "precomputed"}),
    ],
)
@pytest.mark.usefixtures("no_shape_checks")
def test_bad_settings_are_refused_by_name(message, settings):
    with pytest.raises(ValueError, match=message):
        LMSBNClassifier(**settings).fit(X, Y)


@pytest.mark.data
def test_scene_is_recognised_better_than_without_parents(data_folder: Path):
    with np.load(data_folder / "scene" / "scene.npz", allow_pickle=False) as scene:
        images, labels = scene["x_train"], scene["y_train"]
        tests, truth = scene["x_test"], scene["y_test"]
    settings: dict[str, Any] = {"kernel": "rbf", "ordering": "index", "tol": 1e-2}
    network = LMSBNClassifier(2.0, **settings).fit(images, labels)
    alone = LMSBNClassifier(2.0, degree=1, **settings).fit(images, labels)
    assert network.score(tests, truth) >= 0.70 > alone.score(tests, truth)
    assert network.decode(tests).status.exact.all()


@pytest.mark.parametrize("kernel", ["linear", "rbf"])
def test_networks_of_triples_give_probabilities(kernel):
    X, Y = random_inputs(0, 12, 2, 3)
    network = LMSBNClassifier(kernel=kernel, degree=3, random_state=0)
    np.testing.assert_allclose(network.fit(X, list("abcd" * 3)).predict_proba(X).sum(1), 1)
    assert (network.fit(X, Y).log_prob(X, Y) <= 0).all()


@pytest.mark.parametrize(
    "settings", [{}, {"gamma": 0.5}, {"kernel": "poly"}, {"kernel": "poly", "gamma": 0.5}]
)
@pytest.mark.parametrize("form", [np.asarray, sparse.csr_array])
@pytest.mark.filterwarnings("error")
def test_features_whose_squares_overflow_are_refused(settings, form):
    X = np.random.default_rng(0).normal(size=(20, 3))
    Y = (X > 0).astype(float)
    X[3, 1] = 1e200
    message = r"X: expected features whose squares have a finite sum, got 1e\+200"
    for kind, target in ((LMSBNClassifier, Y), (KernelLogisticRegression, Y[:, 0]), (MultiClassSVM, Y[:, 0])):
        model = kind(**{"kernel": "rbf", **settings})
        with pytest.raises(ValueError, match=message):
            model.fit(form(X), target)
