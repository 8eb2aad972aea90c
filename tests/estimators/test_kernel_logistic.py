from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse
from sklearn.datasets import load_digits, load_iris
from sklearn.linear_model import LogisticRegression
from sklearn.metrics.pairwise import polynomial_kernel, rbf_kernel
from sklearn.utils.estimator_checks import parametrize_with_checks

from lmbm_torch.estimators import ChainSVM, KernelLogisticRegression, LMSBNClassifier, MultiClassSVM


@parametrize_with_checks(
    [
        # A bandwidth that the data choose is another one for repeated instances than for weighted ones.
        KernelLogisticRegression(gamma=0.5, tol=1e-18, max_iter=60),
    ]
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_scikit_learn_s_check(estimator, check):
    check(estimator)


def iris():
    X, y = load_iris(return_X_y=True)
    return (X - X.mean(0)) / X.std(0), y


@pytest.mark.parametrize("C", [0.01, 0.3, 10.0])
def test_linear_kernel_is_multinomial_logistic_regression(C):
    X, y = iris()
    ours = KernelLogisticRegression(C, kernel="linear", tol=1e-10).fit(X, y)
    theirs = LogisticRegression(C=C, fit_intercept=False, solver="newton-cg", tol=1e-12, max_iter=1000).fit(
        X, y
    )
    assert ours.duality_gap_ <= 1e-10
    np.testing.assert_allclose(ours.predict_proba(X), theirs.predict_proba(X), atol=1e-4)
    np.testing.assert_allclose(ours.dual_coef_ @ X, theirs.coef_ - theirs.coef_.mean(0), atol=3e-3)


KERNELS = {
    "rbf": ({"kernel": "rbf", "gamma": 0.3}, lambda X, Z: rbf_kernel(X, Z, 0.3)),
    "poly": (
        {"kernel": "poly", "gamma": 0.3, "kernel_degree": 2, "coef0": 0.5},
        lambda X, Z: polynomial_kernel(X, Z, 2, 0.3, 0.5),
    ),
    "linear": ({"kernel": "linear"}, lambda X, Z: X @ Z.T),
}


@pytest.mark.parametrize("name", KERNELS)
def test_named_precomputed_and_given_kernels_agree(name):
    X, y = iris()
    settings, kernel = KERNELS[name]
    train, test = np.arange(0, 150, 2), np.arange(1, 150, 2)
    expected = KernelLogisticRegression(tol=1e-12, **settings).fit(X[train], y[train]).predict_proba(X[test])
    given = KernelLogisticRegression(tol=1e-12, kernel=kernel).fit(X[train], y[train])
    np.testing.assert_allclose(given.predict_proba(X[test]), expected, atol=1e-5)
    matrix = KernelLogisticRegression(tol=1e-12, kernel="precomputed")
    matrix.fit(kernel(X[train], X[train]), y[train])
    np.testing.assert_allclose(matrix.predict_proba(kernel(X[test], X[train])), expected, atol=1e-5)
    rows = sparse.csr_array(X)
    in_rows = KernelLogisticRegression(tol=1e-12, **settings).fit(rows[train], y[train])
    np.testing.assert_allclose(in_rows.predict_proba(rows[test]), expected, atol=1e-5)


@pytest.mark.parametrize("kernel", ["rbf", "precomputed"])
def test_weights_count_and_zeros_leave_out(kernel):
    X, y = iris()
    gram = rbf_kernel(X, X, 0.2)
    weight = np.random.default_rng(0).integers(0, 3, len(y)).astype(float)
    repeated = np.repeat(np.arange(len(y)), weight.astype(int))
    settings = {"kernel": kernel, "gamma": 0.2, "tol": 1e-10}
    data = (gram, gram[np.ix_(repeated, repeated)]) if kernel == "precomputed" else (X, X[repeated])
    weighted = KernelLogisticRegression(**settings).fit(data[0], y, sample_weight=weight)
    by_copies = KernelLogisticRegression(**settings).fit(data[1], y[repeated])
    assert weighted.objective_ == pytest.approx(by_copies.objective_, rel=1e-8)
    others = gram[:, repeated] if kernel == "precomputed" else X
    np.testing.assert_allclose(weighted.predict_proba(data[0]), by_copies.predict_proba(others), atol=1e-5)


def test_digits_are_learned_and_probabilities_are_sound():
    X, y = load_digits(return_X_y=True)
    X = (X / 16).astype(np.float32)
    model = KernelLogisticRegression(C=100, gamma=0.1, tol=1e-6, random_state=0).fit(X[:900], y[:900])
    assert model.score(X[900:], y[900:]) > 0.955
    proba = model.predict_proba(X[900:])
    np.testing.assert_allclose(proba.sum(1), 1, atol=1e-6)
    confident = proba.max(1) > 0.9
    assert (model.predict(X[900:]) == y[900:])[confident].mean() > 0.98
    small_cache = KernelLogisticRegression(C=100, gamma=0.1, tol=1e-6, cache_size=0, random_state=0)
    np.testing.assert_allclose(small_cache.fit(X[:900], y[:900]).predict_proba(X[900:]), proba, atol=5e-3)


def test_bad_settings_are_refused():
    X, y = iris()
    for settings, message in (
        ({"C": 0}, "'C' .* must be a str among .* or a float"),
        ({"kernel": "sigmoid"}, "'kernel' .* must be a str among .* or a callable"),
        ({"gamma": -1.0}, "'gamma' .* must be a str among .* or a float"),
        ({"tol": 0}, "'tol' .* must be a float"),
        ({"max_iter": 0}, "'max_iter' .* must be an int"),
    ):
        with pytest.raises(ValueError, match=message):
            KernelLogisticRegression(**settings).fit(X, y)
    with pytest.raises(ValueError, match="Sample weights"):
        KernelLogisticRegression().fit(X, y, sample_weight=np.zeros(150))


@pytest.mark.parametrize("kind", [KernelLogisticRegression, LMSBNClassifier, MultiClassSVM, ChainSVM])
def test_kernels_of_all_estimators_have_the_same_parameters(kind):
    names = ("gamma", "kernel_degree", "coef0")
    assert [kind().get_params()[name] for name in names] == ["scale", 3, 1.0]
