"""Equal columns of sparse features as one, beside training on all of them."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from lmbm_torch.estimators import ChainCRF, ChainSVM, ConditionalRBMClassifier, MultiClassSVM
from lmbm_torch.fitting.recipe import merged
from lmbm_torch.solvers.networks.problems import canonical

TYPES = [np.float32, np.float64]


def repetitive(random: np.random.Generator, rows: int = 60, dtype: type = np.float64) -> np.ndarray:
    """Dense features of which some columns are equal, some in all but one value, and some zero."""
    columns = random.integers(0, 3, (rows, 4)) * random.standard_normal((rows, 4))
    almost = columns[:, :1].copy()
    almost[np.flatnonzero(almost)[-1]] *= 2
    parts = [columns, np.zeros((rows, 2)), columns[:, [2, 0, 2]], almost, -columns[:, :1]]
    return np.hstack(parts).astype(dtype)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("seed", range(5))
def test_each_column_stands_for_its_equals(seed, dtype):
    random = np.random.default_rng(seed)
    dense = repetitive(random, dtype=dtype)
    features, back = merged(canonical(dense))
    assert features.shape == (60, 7)
    assert features.dtype == dtype
    assert features.has_canonical_format
    weights = random.standard_normal((3, 7))
    of_all = weights @ back
    np.testing.assert_allclose(
        features @ weights.T, dense @ of_all.T, atol=1e-5 if dtype == np.float32 else 1e-12
    )
    np.testing.assert_allclose(np.linalg.norm(of_all), np.linalg.norm(weights), rtol=1e-12)
    np.testing.assert_array_equal(of_all[:, 4], of_all[:, 5])
    np.testing.assert_array_equal(of_all[:, 6], of_all[:, 2])


def test_dense_features_are_left_as_they_are():
    dense = repetitive(np.random.default_rng(0))
    features, back = merged(dense)
    assert features is dense
    np.testing.assert_array_equal(back.toarray(), np.eye(dense.shape[1]))


def test_features_of_zeros_are_one_column():
    features, back = merged(canonical(np.zeros((5, 3))))
    assert features.shape == (5, 1)
    np.testing.assert_allclose(back.toarray(), np.full((1, 3), 3**-0.5))


def sequences(random: np.random.Generator) -> tuple[list[np.ndarray], list[np.ndarray]]:
    features = [repetitive(random, rows) for rows in random.integers(2, 8, 30)]
    weights = random.standard_normal((features[0].shape[1], 3))
    labels = [(rows @ weights + random.gumbel(size=(len(rows), 3))).argmax(1) for rows in features]
    return features, labels


@pytest.mark.parametrize("C", [1.0, "scale"])
@pytest.mark.parametrize("estimator", [ChainCRF(tol=1e-6), ChainSVM(tol=1e-6, random_state=0)])
def test_chains_learn_the_weights_of_all_columns(estimator, C):
    features, labels = sequences(np.random.default_rng(0))
    estimator.set_params(C=C)
    of_dense = estimator.fit(features, labels)
    coef, intercept, objective = of_dense.coef_, of_dense.intercept_, of_dense.objective_
    of_sparse = estimator.fit([sparse.csr_array(rows) for rows in features], labels)
    assert of_sparse.coef_.shape == coef.shape
    # The excess of ½‖w‖² bounds the distance of the weights from the optimum.
    np.testing.assert_allclose(of_sparse.objective_, objective, rtol=3e-6)
    np.testing.assert_allclose(of_sparse.coef_, coef, atol=0.02 if isinstance(estimator, ChainSVM) else 1e-4)
    np.testing.assert_allclose(of_sparse.intercept_, intercept, atol=0.02)


@pytest.mark.parametrize("rows", [12, 60], ids=["kernel values", "weights"])
def test_classes_learn_the_weights_of_all_columns(rows):
    random = np.random.default_rng(1)
    features = repetitive(random, rows)
    labels = random.integers(0, 3, rows)
    of_dense = MultiClassSVM(tol=1e-7, random_state=0).fit(features, labels)
    of_sparse = MultiClassSVM(tol=1e-7, random_state=0).fit(sparse.csr_array(features), labels)
    np.testing.assert_allclose(of_sparse.coef_, of_dense.coef_, atol=2e-3)


@pytest.mark.parametrize("objective", ["mle", "mle_bp"])
def test_hidden_units_learn_the_weights_of_all_columns(objective):
    random = np.random.default_rng(2)
    features = repetitive(random)
    labels = (features[:, :3] + random.standard_normal((60, 3)) > 0).astype(int)
    machine = ConditionalRBMClassifier(
        1.0, num_hidden=2, objective=objective, max_iter=20, random_state=0, dtype="float64"
    )
    distinct, back = merged(canonical(features))
    of_distinct = machine.fit(distinct.toarray(), labels).model_
    of_all = machine.fit(sparse.csr_array(features), labels).model_
    for name in of_all.OF_FEATURES:
        weights = of_all.get_parameter(name).numpy()
        assert np.abs(weights).max() > 0.01
        np.testing.assert_allclose(weights, of_distinct.get_parameter(name).numpy() @ back, atol=1e-6)
    np.testing.assert_allclose(of_all.coupling, of_distinct.coupling, atol=1e-6)


@pytest.mark.parametrize("estimator", [ChainCRF(), ChainSVM()])
def test_features_of_zeros_leave_intercepts_and_transitions(estimator):
    nothing = [sparse.csr_array((4, 3)) for _ in range(5)]
    labels = [np.array([0, 1, 0, 1])] * 5
    fitted = estimator.fit(nothing, labels)
    np.testing.assert_array_equal(fitted.coef_, np.zeros((2, 3)))
    assert [row.tolist() for row in fitted.predict(nothing)] == [[0, 1, 0, 1]] * 5
