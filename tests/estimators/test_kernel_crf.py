"""Conditional random fields of chains with a kernel: the optimum of a convex solver and of linear fields."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from sklearn.metrics.pairwise import rbf_kernel

from lmbm_torch import load
from lmbm_torch.estimators import ChainCRF
from lmbm_torch.references import logistic_dual

RANDOM = np.random.default_rng(0)
X = [RANDOM.normal(size=(2, 2)) for _ in range(10)]
Y = [(each[:, 0] * each[:, 1] > 0).astype(int) for each in X]


def test_the_objective_is_that_of_all_labellings():
    model = ChainCRF(2.0, kernel="rbf", gamma=0.5, tol=1e-5).fit(X, Y, sample_weight=1 + np.arange(10) % 2)
    assert model.duality_gap_ <= 1e-5
    labellings = np.array(list(product(range(2), repeat=2)))
    values = rbf_kernel(np.concatenate(X), gamma=0.5).reshape(10, 2, 10, 2) + 1
    same = (labellings[:, :, None, None] == labellings[None, None]).astype(float)
    matrix = np.einsum("itjs,ytzs->iyjz", values, same)
    matrix += (labellings[:, None] == labellings[None]).all(2)[None, :, None, :]
    targets = np.array([(labellings == each).all(1) for each in Y], float)
    best, probabilities = logistic_dual(matrix, targets, 2.0 * (1 + np.arange(10) % 2))
    assert model.objective_ == pytest.approx(best, rel=1e-4)
    first = probabilities @ (labellings[:, 0] == 1)
    found = [each[0, 1] for each in model.predict_proba(X)]
    np.testing.assert_allclose(found, first, atol=0.01)


def test_a_linear_kernel_is_the_linear_field():
    linear = ChainCRF(0.5, tol=1e-6).fit(X, Y)
    kernel = ChainCRF(0.5, kernel=lambda a, b: a @ b.T, tol=1e-5).fit(X, Y)
    assert kernel.objective_ == pytest.approx(linear.objective_, rel=2e-5)
    np.testing.assert_allclose(kernel.transition_, linear.transition_, atol=0.01)
    np.testing.assert_allclose(kernel.intercept_, linear.intercept_, atol=0.01)
    by_c2 = ChainCRF(c2=1.0, kernel=lambda a, b: a @ b.T, tol=1e-5).fit(X, Y)
    assert by_c2.C_ == 0.5
    assert by_c2.objective_ == pytest.approx(kernel.objective_, rel=1e-9)


def test_a_kernel_learns_what_no_line_does_and_is_stored(tmp_path):
    kernel = ChainCRF(10.0, kernel="rbf").fit(X, Y)
    assert kernel.score(X, Y) > ChainCRF(10.0).fit(X, Y).score(X, Y) + 0.1
    kernel.save(tmp_path / "field")
    read = load(tmp_path / "field")
    assert all(np.array_equal(a, b) for a, b in zip(read.predict(X), kernel.predict(X), strict=True))


@pytest.mark.parametrize(
    ("settings", "weight", "message"),
    [
        ({"c1": 0.1}, None, "c1: expected 0 with a kernel"),
        ({}, np.arange(10.0), "sample_weight: expected weights above 0 with a kernel"),
        ({"kernel": "cosine"}, None, "kernel"),
    ],
)
def test_what_a_kernel_does_not_take_is_refused(settings, weight, message):
    with pytest.raises(ValueError, match=message):
        ChainCRF(**{"kernel": "rbf", **settings}).fit(X, Y, sample_weight=weight)
