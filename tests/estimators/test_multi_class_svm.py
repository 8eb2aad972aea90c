"""The multi-class SVM's two ways to train with a linear kernel, its weights, and its matrices of values."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics.pairwise import polynomial_kernel, rbf_kernel

from lmbm_torch import memory_budget
from lmbm_torch.estimators import MultiClassSVM
from lmbm_torch.estimators.chains import max_margin
from lmbm_torch.estimators.common.kernels import Kernel

X, y = load_digits(return_X_y=True)
X, y = X[:300] / 16, y[:300]


@pytest.mark.parametrize("C", [0.05, "scale"])
@pytest.mark.parametrize("form", [np.asarray, sparse.csr_array])
def test_few_and_many_instances_have_one_linear_optimum(monkeypatch, form, C):
    dual = MultiClassSVM(C, tol=1e-5, random_state=0).fit(form(X), y)
    monkeypatch.setattr(max_margin, "multi_class", None)
    with memory_budget("512 KiB"):
        weights = MultiClassSVM(C, tol=1e-5, random_state=0).fit(form(X), y)
    assert max(dual.duality_gap_, weights.duality_gap_) <= 1e-5
    assert dual.objective_ == pytest.approx(weights.objective_, rel=2e-5)
    np.testing.assert_allclose(dual.coef_, weights.coef_, atol=0.02 * np.abs(weights.coef_).max())
    np.testing.assert_allclose(dual.intercept_, weights.intercept_, atol=0.02)
    assert (dual.predict(form(X)) == weights.predict(form(X))).mean() > 0.98


def test_linear_scores_are_those_of_the_same_kernel_given_as_a_function():
    linear = MultiClassSVM(0.1, tol=1e-5, random_state=0).fit(X, y)
    kernel = MultiClassSVM(0.1, kernel=lambda a, b: a @ b.T, tol=1e-5, random_state=0).fit(X, y)
    scores, expected = linear.decision_function(X), kernel.decision_function(X)
    np.testing.assert_allclose(scores, expected, atol=0.02 * np.abs(expected).max())
    assert linear.objective_ == pytest.approx(kernel.objective_, rel=2e-5)


@pytest.mark.parametrize("kernel", ["linear", "rbf"])
def test_a_weight_is_how_often_an_instance_counts(kernel):
    weight = np.arange(len(y)) % 3
    settings = {"kernel": kernel, "gamma": 0.1, "tol": 1e-6, "random_state": 0}
    weighted = MultiClassSVM(0.3, **settings).fit(X, y, sample_weight=weight)
    repeated = MultiClassSVM(0.3, **settings).fit(X.repeat(weight, 0), y.repeat(weight))
    assert weighted.objective_ == pytest.approx(repeated.objective_, rel=2e-6)
    expected = repeated.decision_function(X)
    np.testing.assert_allclose(weighted.decision_function(X), expected, atol=5e-3)


@pytest.mark.parametrize("form", [np.asarray, sparse.csr_array])
def test_matrices_of_kernels_with_names_are_symmetric_and_right(form):
    for name, expected in (
        ("rbf", rbf_kernel(X, gamma=0.2)),
        ("poly", polynomial_kernel(X, gamma=0.2, degree=3, coef0=1.0)),
        ("linear", X @ X.T),
    ):
        found = Kernel(name, 0.2, 3, 1.0, "cpu").matrix(form(X))
        np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12)
        np.testing.assert_array_equal(found, found.T)


def test_a_function_that_is_not_symmetric_is_refused_as_such():
    with pytest.raises(ValueError, match="gram: expected a symmetric matrix"):
        MultiClassSVM(kernel=lambda a, b: a @ np.roll(b, 1, axis=1).T).fit(X, y)
    gram = X @ X.T
    before = gram.copy()
    MultiClassSVM(kernel="precomputed", random_state=0).fit(gram, y)
    np.testing.assert_array_equal(gram, before)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_training_ends_where_rounding_hides_the_margins(seed):
    random = np.random.default_rng(seed)
    features = random.uniform(1e6, 5e8, 8)
    features[1] = features[0]
    # Steps on the first distribution went round in circles.
    svm = MultiClassSVM(kernel="precomputed", max_iter=20, random_state=0)
    svm.fit(np.outer(features, features), [0, 0, 1, *random.integers(0, 3, 5)])
    assert svm.n_iter_ <= 20


@pytest.mark.parametrize("C", [1e-6, 1e-12])
def test_features_and_penalties_of_next_to_nothing_end_in_numbers(C):
    random = np.random.default_rng(0)
    X, y = random.normal(size=(600, 10)) * 1e-8, random.integers(0, 4, 600)
    model = MultiClassSVM(C, max_iter=50).fit(X, y)
    assert np.isfinite(model.coef_).all()
    assert model.duality_gap_ <= 1e-3


def test_no_gap_is_above_one():
    random = np.random.default_rng(1)
    X = random.normal(size=(200, 6)) * np.abs(random.standard_cauchy((200, 6))) ** 3
    model = MultiClassSVM(100, max_iter=5)
    with pytest.warns(ConvergenceWarning, match="relative duality gap"):
        model.fit(X, random.integers(0, 3, 200))
    assert model.duality_gap_ <= 1
