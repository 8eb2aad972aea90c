"""Weights of each label's values: the optimum is that of a convex solver for the weighted problem."""

from __future__ import annotations

from itertools import product

import cvxpy as cp
import numpy as np
import pytest
from sklearn.base import clone
from sklearn.svm import LinearSVC
from sklearn.utils.class_weight import compute_sample_weight
from strategies.label_problems import random_inputs

from lmbm_torch.estimators import LMBMClassifier, LMSBNClassifier, StructuralSVMClassifier

X, Y = random_inputs(3, 30, 3, 3)
SPINS = 2 * Y - 1
SETTINGS = {
    "balanced": "balanced",
    "one for all": {0: 0.5, 1: 3.0},
    "of each label": ["balanced", {0: 0.0, 1: 2.0}, None],
}
given = pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS.keys())
WEIGHT = np.random.default_rng(0).integers(1, 4, len(X)).astype(float)


def weights(setting) -> np.ndarray:
    """(instances, labels)."""
    settings = setting if isinstance(setting, list) else [setting] * Y.shape[1]
    return np.stack([_of_label(each, column) for each, column in zip(settings, Y.T, strict=True)], 1)


def _of_label(setting, column: np.ndarray) -> np.ndarray:
    if setting == "balanced":
        return compute_sample_weight("balanced", column)
    return np.ones(len(column)) if setting is None else np.where(column == 1, setting[1], setting[0])


def least(objective: cp.Expression) -> float:
    return float(cp.Problem(cp.Minimize(objective)).solve(solver=cp.CLARABEL))


def network_optimum(cost: np.ndarray, C: float) -> float:
    total = 0.0
    for k in range(Y.shape[1]):
        inputs = np.hstack([X, np.ones((len(X), 1)), SPINS[:, :k]])
        w = cp.Variable(inputs.shape[1])
        hinge = cp.pos(1 - cp.multiply(SPINS[:, k], inputs @ w))
        total += least(cp.sum_squares(w) / 2 + C * cost[:, k] @ hinge)
    return total


def machine_optimum(cost: np.ndarray, C: float, penalty: float) -> float:
    inputs, labels = np.hstack([X, np.ones((len(X), 1))]), Y.shape[1]
    w, v = cp.Variable((inputs.shape[1], labels)), cp.Variable((labels, labels), symmetric=True)
    margins = cp.multiply(SPINS, inputs @ w + SPINS @ (v - cp.diag(cp.diag(v))))
    square = cp.sum_squares(w) + penalty * cp.sum_squares(cp.upper_tri(v))
    return least(square / 2 + C * cp.sum(cp.multiply(cost, cp.pos(1 - margins))))


def structural_optimum(cost: np.ndarray, C: float) -> float:
    inputs, labels = np.hstack([X, np.ones((len(X), 1))]), Y.shape[1]
    w, v = cp.Variable((inputs.shape[1], labels)), cp.Variable(labels * (labels - 1) // 2)
    pairs = [(i, j) for i in range(labels) for j in range(i + 1, labels)]

    def score(spins: np.ndarray) -> cp.Expression:
        joint = np.stack([spins[:, i] * spins[:, j] for i, j in pairs], 1)
        return cp.sum(cp.multiply(spins, inputs @ w), axis=1) + joint @ v

    losses = []
    for other in product([-1.0, 1.0], repeat=labels):
        spins = np.tile(other, (len(X), 1))
        losses.append((cost * (spins != SPINS)).sum(1) + score(spins) - score(SPINS))
    worst = cp.max(cp.vstack(losses), axis=0)
    return least((cp.sum_squares(w) + cp.sum_squares(v)) / 2 + C * cp.sum(worst))


@given
@pytest.mark.parametrize("solver", ["dual_coordinate", "exponentiated_gradient", "pegasos"])
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_network_solves_the_weighted_problem(setting, solver):
    tol = 1e-2 if solver == "pegasos" else 1e-7
    network = LMSBNClassifier(
        0.7, ordering="index", class_weight=setting, solver=solver, tol=tol, max_iter=3000, random_state=0
    ).fit(X, Y, WEIGHT)
    cost = weights(setting) * WEIGHT[:, None]
    assert network.objective_ == pytest.approx(network_optimum(cost, 0.7), rel=2 * tol)
    assert network.duality_gap_ <= tol


@given
def test_another_ordering_moves_the_weights_with_its_labels(setting):
    ordered = LMSBNClassifier(0.7, ordering=[2, 0, 1], class_weight=setting, degree=1, tol=1e-8).fit(X, Y)
    plain = LMSBNClassifier(0.7, ordering="index", class_weight=setting, degree=1, tol=1e-8).fit(X, Y)
    np.testing.assert_allclose(ordered.coef_, plain.coef_, atol=1e-4)


@given
def test_kernel_network_is_the_linear_one_for_a_linear_kernel(setting):
    kernel = LMSBNClassifier(
        0.7, kernel="precomputed", ordering="index", class_weight=setting, tol=1e-7, random_state=0
    ).fit(X @ X.T, Y)
    assert kernel.objective_ == pytest.approx(network_optimum(weights(setting), 0.7), rel=1e-6)


@given
def test_machine_solves_the_weighted_problem(setting):
    machine = LMBMClassifier(0.7, coupling_penalty=2.0, class_weight=setting, tol=1e-6).fit(X, Y, WEIGHT)
    cost = weights(setting) * WEIGHT[:, None]
    assert machine.objective_ == pytest.approx(machine_optimum(cost, 0.7, 2.0), rel=1e-5)


@given
def test_structural_svm_solves_the_weighted_problem(setting):
    svm = StructuralSVMClassifier(0.3, class_weight=setting, tol=1e-4, random_state=0).fit(X, Y)
    assert svm.objective_ == pytest.approx(structural_optimum(weights(setting), 0.3), rel=2e-4)


def test_balanced_independent_labels_are_scikit_learns():
    ours = LMSBNClassifier(1.0, degree=1, class_weight="balanced", tol=1e-8).fit(X, Y)
    for label in range(Y.shape[1]):
        theirs = LinearSVC(
            C=1.0, loss="hinge", class_weight="balanced", tol=1e-10, max_iter=1_000_000, random_state=0
        ).fit(X, Y[:, label])
        np.testing.assert_allclose(ours.coef_[label], theirs.coef_[0], atol=1e-3)


def test_missing_labels_weigh_nothing():
    missing = Y.copy()
    missing[::4, 1] = np.nan
    own = {"C": 0.7, "ordering": "index", "tol": 1e-6, "random_state": 0}
    one = LMSBNClassifier(class_weight="balanced", **own).fit(X, missing)
    known = ~np.isnan(missing[:, 1])
    cost = np.ones(Y.shape)
    for label in range(Y.shape[1]):
        rows = known if label == 1 else slice(None)
        cost[rows, label] = compute_sample_weight("balanced", Y[rows, label])
    settings = [{value: cost[Y[:, k] == value, k].min() for value in (0, 1)} for k in (0, 2)]
    middle = {value: cost[known & (Y[:, 1] == value), 1][0] for value in (0, 1)}
    two = LMSBNClassifier(class_weight=[settings[0], middle, settings[1]], **own).fit(X, missing)
    np.testing.assert_allclose(one.coef_, two.coef_)
    assert one.duality_gap_ <= 1e-6


@pytest.mark.parametrize("make", [LMSBNClassifier, LMBMClassifier, StructuralSVMClassifier])
def test_other_settings_are_refused(make):
    for strange in ("even", {0: -1.0}, ["balanced"], {1: np.nan}, {"1": 20.0}, {-1: 2.0}):
        with pytest.raises(ValueError, match="class_weight: expected"):
            make(class_weight=strange).fit(X, Y)
    with pytest.raises(ValueError, match="solver: expected 'proximal_newton' with class_weight"):
        LMBMClassifier(class_weight="balanced", solver="dual_coordinate").fit(X, Y)


@pytest.mark.parametrize("setting", [{"a": 3.0, "c": 0.5}, "balanced"])
@pytest.mark.parametrize(
    "model",
    [
        LMSBNClassifier(1.0, ordering="index", tol=1e-10),
        LMBMClassifier(1.0, tol=1e-8),
        StructuralSVMClassifier(1.0, tol=1e-7, max_iter=10_000, random_state=0),
    ],
    ids=lambda model: type(model).__name__,
)
def test_weights_of_classes_are_those_of_their_instances(model, setting):
    random = np.random.default_rng(0)
    rows = random.normal(size=(60, 3))
    classes = np.array(["a", "b", "c"])[(rows + random.normal(size=(60, 3))).argmax(1)]
    weighted = clone(model).set_params(class_weight=setting).fit(rows, classes)
    expected = clone(model).fit(rows, classes, compute_sample_weight(setting, classes))
    np.testing.assert_allclose(weighted.coef_, expected.coef_, atol=1e-3)
    plain = clone(model).fit(rows, classes)
    assert np.abs(weighted.coef_ - plain.coef_).max() > 0.01
