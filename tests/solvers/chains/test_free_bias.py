"""Biases outside of the penalty: the optimum of a convex solver, feasible duals, and libsvm's machines."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse
from sklearn.datasets import load_digits
from sklearn.multioutput import MultiOutputClassifier
from sklearn.svm import SVC

from lmbm_torch.estimators import MultiClassSVM
from lmbm_torch.references import TinyChains, chain_dual, chain_primal, hinge_dual, hinge_primal
from lmbm_torch.solvers.base import run
from lmbm_torch.solvers.chains import free_bias
from lmbm_torch.solvers.chains.kernel_problem import ChainKernelProblem

X, DIGITS = load_digits(return_X_y=True)
X = X[:150] + 3.0


def drawn(seed: int, states: int, size: int = 12):
    """Inputs far from zero, where a penalised bias would be another machine."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, states, size)
    labels[0] = states - 1
    return random.normal(size=(size, 3)) + labels[:, None] + 2, labels, random.random(size) + 0.5


@pytest.mark.parametrize(("states", "C"), [(2, 1.0), (3, 0.3), (4, 3.0)])
def test_the_optimum_is_that_of_the_convex_programmes(states, C):
    inputs, labels, weight = drawn(states, states)
    start = np.arange(len(labels) + 1)
    problem = ChainKernelProblem(inputs @ inputs.T, labels, start, states, C=C, sample_weight=weight)
    state = run(free_bias, problem, tol=1e-5, max_iter=20_000)
    tiny = TinyChains(list(inputs[:, None]), list(labels[:, None]), states, C * weight, free_bias=True)
    assert state.gap <= 1e-5
    assert state.primal == pytest.approx(chain_primal(tiny), rel=2e-5)
    assert state.dual == pytest.approx(chain_dual(tiny), rel=2e-5)
    # Not those of penalised biases.
    inputs = np.column_stack([inputs, np.ones(len(inputs))])
    assert (
        chain_primal(TinyChains(list(inputs[:, None]), list(labels[:, None]), states, C * weight))
        > 1.01 * state.primal
    )


def test_every_state_is_feasible_and_bounds_the_optimum():
    inputs, labels, weight = drawn(5, 4, 40)
    problem = ChainKernelProblem(inputs @ inputs.T, labels, np.arange(41), 4, sample_weight=weight)
    best = run(free_bias, problem, tol=1e-6, max_iter=20_000)
    state = free_bias.init(problem)
    for _ in range(4):
        state = free_bias.update(problem, state, num_iters=1)
        assert np.abs(problem.coef(state.nodes).sum(0)).max() <= 1e-9
        assert state.nodes.min() >= 0
        np.testing.assert_allclose(state.nodes.sum(1), 1)
        assert state.dual <= best.primal * (1 + 1e-9)
        assert state.primal >= best.dual * (1 - 1e-9)
    assert best.bias.sum() == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("kernel", ["linear", "rbf", "poly"])
@pytest.mark.parametrize("C", [0.01, 1.0])
def test_two_classes_are_libsvm_s(kernel, C):
    classes = DIGITS[:150] % 2
    ours = MultiClassSVM(C, kernel=kernel, free_intercept=True, tol=1e-5, max_iter=10_000).fit(X, classes)
    theirs = SVC(C=2 * C, kernel=kernel, coef0=1.0, tol=1e-6).fit(X, classes)
    scores = ours.decision_function(X)
    scores = scores[:, 1] - scores[:, 0] if scores.ndim == 2 else scores
    np.testing.assert_allclose(scores, theirs.decision_function(X), atol=0.02)


def test_the_machine_of_each_label_is_libsvm_s():
    labels = np.column_stack([DIGITS[:150] % 2, DIGITS[:150] > 4])
    ours = MultiOutputClassifier(MultiClassSVM(0.01, free_intercept=True, tol=1e-5, max_iter=10_000))
    for own, column in zip(ours.fit(X, labels).estimators_, labels.T, strict=True):
        theirs = SVC(C=0.02, kernel="linear", tol=1e-6).fit(X, column)
        np.testing.assert_allclose(np.diff(own.coef_, axis=0), theirs.coef_, atol=1e-3)
        np.testing.assert_allclose(np.diff(own.intercept_), theirs.intercept_, atol=0.02)


def test_binary_references_have_the_free_bias_of_libsvm():
    inputs, labels, weight = drawn(7, 2)
    spins = 2 * labels - 1
    primal, weights, bias = hinge_primal(inputs, spins, weight, free_bias=True)
    dual, duals = hinge_dual(inputs @ inputs.T, spins, weight, free_bias=True)
    assert dual == pytest.approx(primal, rel=1e-6)
    theirs = SVC(kernel="linear", C=1.0, tol=1e-8).fit(inputs, labels, sample_weight=weight)
    np.testing.assert_allclose(inputs @ weights + bias, theirs.decision_function(inputs), atol=1e-4)
    assert (duals * spins).sum() == pytest.approx(0, abs=1e-6)


def test_sparse_features_and_many_classes_are_trained():
    dense = MultiClassSVM(0.1, free_intercept=True, random_state=0).fit(X, DIGITS[:150])
    stored = MultiClassSVM(0.1, free_intercept=True, random_state=0).fit(sparse.csr_array(X), DIGITS[:150])
    assert dense.duality_gap_ <= 1e-3
    np.testing.assert_allclose(stored.coef_, dense.coef_, atol=1e-6)
    # A bias is free: moving the inputs moves nothing else.
    moved = MultiClassSVM(0.1, free_intercept=True, random_state=0, tol=1e-5, max_iter=10_000).fit(
        X - 9, DIGITS[:150]
    )
    again = MultiClassSVM(0.1, free_intercept=True, random_state=0, tol=1e-5, max_iter=10_000).fit(
        X, DIGITS[:150]
    )
    np.testing.assert_allclose(moved.coef_, again.coef_, atol=1e-3)
