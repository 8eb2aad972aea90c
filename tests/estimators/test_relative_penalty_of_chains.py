"""C="scale" of chains, multi-class SVMs and kernels: in other units, and as the number that it stands for."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.metrics.pairwise import polynomial_kernel

from lmbm_torch.estimators import (
    ChainCRF,
    ChainSVM,
    KernelLogisticRegression,
    MaximumEntropyMarkovClassifier,
    MultiClassSVM,
)
from lmbm_torch.fitting.recipe import column_units, scaled

rows, classes = load_iris(return_X_y=True)
rows, classes = rows[::2], classes[::2]
ROWS = rows - rows.min(0) + [0, 2000, 0, 0]
SHIFT, RANGES = ROWS.mean(0), 2 * ROWS.std(0)
UNITS = np.array([1e-4, 1e3, 7, 1e6])
CUTS = np.arange(5, 75, 5)
CHAINS = {
    "crf": ChainCRF("scale", tol=1e-6),
    "chain": ChainSVM("scale", tol=1e-4, random_state=0),
    "markov": MaximumEntropyMarkovClassifier("scale"),
}
KERNELS = {
    "logistic": KernelLogisticRegression("scale", random_state=0),
    "classes": MultiClassSVM("scale", tol=1e-5, random_state=0),
    "chain": ChainSVM("scale", tol=1e-5, random_state=0),
}


def fitted(model, X, **settings):
    """To the classes of rows, or of sequences of five rows."""
    model = clone(model).set_params(**settings)
    if isinstance(model, (KernelLogisticRegression, MultiClassSVM)):
        return model.fit(X, classes)
    return model.fit(np.split(X, CUTS), np.split(classes, CUTS))


def scores(model, X):
    return X @ model.coef_.T + model.intercept_


@pytest.mark.parametrize("model", [*CHAINS.values(), KERNELS["classes"]], ids=[*CHAINS, "classes"])
def test_is_a_penalty_of_one_for_scaled_features(model):
    moved = (ROWS - SHIFT) / RANGES
    scale = np.sqrt((moved**2).sum(1).mean())
    relative, absolute = fitted(model, UNITS * ROWS), fitted(model, moved / scale, C=1.0)
    assert relative.C_ == absolute.C_ == 1.0
    np.testing.assert_allclose(relative.feature_scale_, UNITS * RANGES * scale)
    np.testing.assert_allclose(relative.feature_shift_, UNITS * SHIFT)
    expected = scores(absolute, moved / scale)
    np.testing.assert_allclose(scores(relative, UNITS * ROWS), expected, atol=1e-3 * np.abs(expected).max())
    if hasattr(model, "transition_"):
        np.testing.assert_allclose(relative.transition_, absolute.transition_, atol=1e-3)


@pytest.mark.parametrize("model", CHAINS.values(), ids=CHAINS)
def test_weights_of_zero_and_sparse_rows_leave_the_scale_as_it_is(model):
    weight = np.ones(15)
    weight[:3] = 0
    far = ROWS.copy()
    far[:15] *= 1e3
    weighted = clone(model).fit(np.split(far, CUTS), np.split(classes, CUTS), weight)
    without = clone(model).fit(np.split(ROWS, CUTS)[3:], np.split(classes, CUTS)[3:])
    np.testing.assert_allclose(weighted.feature_scale_, without.feature_scale_)
    sequences = [sparse.csr_array(each) for each in np.split(ROWS, CUTS)]
    sparse_rows = clone(model).fit(sequences, np.split(classes, CUTS))
    np.testing.assert_allclose(sparse_rows.coef_, fitted(model, ROWS).coef_, rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("kernel", ["rbf", "poly", "precomputed"])
@pytest.mark.parametrize("name", KERNELS)
def test_is_relative_to_the_kernel_of_an_instance_with_itself_in_own_units(name, kernel):
    if (name, kernel) == ("chain", "precomputed"):
        kernel = polynomial_kernel
    X, seen = (polynomial_kernel(ROWS),) * 2 if kernel == "precomputed" else (ROWS, ROWS)
    if kernel in ("rbf", "poly"):
        seen = scaled(ROWS, *column_units(ROWS))
    # gamma="scale" is by the variance of all entries, that of polynomial_kernel by the features alone.
    gamma = 0.25 / seen.var() if kernel == "poly" else 0.25
    square = 1.0 if kernel == "rbf" else ((gamma * (seen**2).sum(1) + 1) ** 3).mean()
    if kernel == "precomputed":
        square = X.diagonal().mean()
    relative = fitted(KERNELS[name], X, kernel=kernel, tol=0.01)
    assert pytest.approx(1 / square) == relative.C_
    given = fitted(KERNELS[name], seen, kernel=kernel, tol=0.01, C=relative.C_)
    np.testing.assert_array_equal(relative.dual_coef_, given.dual_coef_)
    twice = fitted(KERNELS[name], X, kernel=kernel, tol=0.01, C="2*scale")
    assert twice.C_ == 2 * relative.C_


def test_other_words_are_refused():
    for model in (*CHAINS.values(), *KERNELS.values()):
        with pytest.raises(ValueError, match="The 'C' parameter of"):
            fitted(model, ROWS, C="auto")
