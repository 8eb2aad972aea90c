"""C="scale" and its multiples: columns in other units change nothing, and scaled features learn the same."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone
from strategies.label_problems import random_inputs

from lmbm_torch.estimators import (
    ConditionalRBMClassifier,
    LMBMClassifier,
    LMSBNClassifier,
    StructuralSVMClassifier,
)
from lmbm_torch.fitting import recipe

X, Y = random_inputs(0, 60, 4, 4)
X = np.random.default_rng(0).normal(X)
# Years; a count that is mostly 0, and one that nearly all have, which is no mean to count from.
X[:, 1] += 2000 - X[:, 1].min()
X = np.column_stack([X, np.where(X[:, 0] > 1, 5.0, 0.0), np.where(X[:, 2] > 1, 0.0, 3.0)])
SHIFT = np.array([*X[:, :4].mean(0), 0, X[:, 5].mean()])
RANGES = np.array([*2 * X[:, :4].std(0), 5, 2 * X[:, 5].std()])
UNITS = np.array([1e-6, 1e3, 7, 1e9, 1e2, 1e-3])
MODELS = {
    "network": LMSBNClassifier(random_state=0),
    "machine": LMBMClassifier(random_state=0),
    "structural": StructuralSVMClassifier(random_state=0),
    "conditional RBM": ConditionalRBMClassifier(num_hidden=2, max_iter=5, random_state=0),
}
every = pytest.mark.parametrize("model", MODELS.values(), ids=MODELS.keys())


@every
def test_is_a_penalty_of_one_for_scaled_features(model):
    moved = (X - SHIFT) / RANGES
    scale = np.sqrt((moved**2).sum(1).mean())
    relative = clone(model).fit(UNITS * X, Y)
    absolute = clone(model).set_params(C=1.0).fit(moved / scale, Y)
    assert relative.C_ == absolute.C_ == 1.0
    np.testing.assert_allclose(relative.feature_scale_, UNITS * RANGES * scale)
    np.testing.assert_allclose(relative.feature_shift_, UNITS * SHIFT)
    assert (absolute.feature_shift_, absolute.feature_scale_) == (0.0, 1.0)
    if isinstance(model, StructuralSVMClassifier):
        # Rounding turns its solver to another path; both ends are within tol of the optimum.
        assert relative.objective_ == pytest.approx(absolute.objective_, rel=2 * model.tol)
        return
    probability = relative.predict_proba(UNITS * X)
    np.testing.assert_allclose(probability, absolute.predict_proba(moved / scale), atol=1e-6)
    if hasattr(relative, "coef_"):
        np.testing.assert_allclose(
            relative.coef_ * relative.feature_scale_, absolute.coef_, rtol=1e-6, atol=1e-6
        )
        fields = relative.coef_ @ (UNITS * X[0]) + relative.intercept_
        np.testing.assert_allclose(fields, absolute.coef_ @ moved[0] / scale + absolute.intercept_, atol=1e-6)


@every
def test_sparse_and_single_precision_features_are_scaled_alike(model):
    dense = clone(model).fit(X, Y)
    for other in (sparse.csr_array(X), X.astype(np.float32)):
        np.testing.assert_allclose(clone(model).fit(other, Y).feature_scale_, dense.feature_scale_, rtol=1e-4)


@every
def test_where_columns_begin_changes_nothing(model):
    """As long as 0 is no habit of theirs: with zeros kept, these networks would answer no label at all."""
    random = np.random.default_rng(0)
    standard, far = random.normal(size=(300, 5)), np.array([0.0, 10.0, -1e3, 3.0, 1e5])
    labels = (standard @ random.normal(size=(5, 3)) > 1.5).astype(int)
    here, there = (clone(model).fit(standard + start, labels) for start in (0.0, far))
    answers = here.predict(standard)
    assert answers.any()
    assert (there.predict(standard + far) != answers).mean() < 0.01


def test_weights_of_zero_leave_an_instance_out_of_the_scale():
    weight = np.ones(len(X))
    weight[:20] = 0
    far = X.copy()
    far[:20] *= 1e3
    fitted = LMSBNClassifier(ordering="index", random_state=0).fit(far, Y, weight)
    without = LMSBNClassifier(ordering="index", random_state=0).fit(X[20:], Y[20:])
    np.testing.assert_allclose(fitted.feature_scale_, without.feature_scale_)
    np.testing.assert_allclose(fitted.feature_shift_, without.feature_shift_)
    twice = LMSBNClassifier(ordering="index", random_state=0).fit(X, Y, 1 + weight)
    repeated = LMSBNClassifier(ordering="index", random_state=0)
    repeated.fit(np.vstack([X, X[20:]]), np.vstack([Y, Y[20:]]))
    np.testing.assert_allclose(twice.feature_scale_, repeated.feature_scale_)
    np.testing.assert_allclose(twice.feature_shift_, repeated.feature_shift_)


def test_features_of_zero_are_taken_as_they_are():
    fitted = LMSBNClassifier(random_state=0).fit(0 * X, Y)
    np.testing.assert_array_equal(fitted.feature_scale_, 1)
    np.testing.assert_array_equal(fitted.coef_, 0)


def test_refused_with_features_in_cliques():
    machine = LMBMClassifier(cliques=[(0, 1), (2, 3)], clique_features=[1, None])
    with pytest.raises(ValueError, match="C: expected a number with clique_features"):
        machine.fit(X, Y)
    assert clone(machine).set_params(C=1.0).fit(X, Y).feature_scale_ == 1


@pytest.mark.parametrize(
    "C", ["auto", "0*scale", "-1*scale", "1e999*scale", "1.2.3*scale", "2*", "scale*2", "nan*scale"]
)
def test_other_words_are_refused(C):
    with pytest.raises(ValueError, match=r"The 'C' parameter of LMSBNClassifier must be .*'0.3\*scale'"):
        LMSBNClassifier(C).fit(X, Y)


@every
def test_a_multiple_counts_in_the_same_units(model):
    one = clone(model).fit(UNITS * X, Y)
    other = clone(model).set_params(C="0.3*scale").fit(UNITS * X, Y)
    assert other.C_ == 0.3
    np.testing.assert_array_equal(other.feature_scale_, one.feature_scale_)
    number = clone(model).set_params(C=0.3).fit((UNITS * X - other.feature_shift_) / other.feature_scale_, Y)
    assert number.C_ == 0.3
    if isinstance(model, StructuralSVMClassifier):
        assert other.objective_ == pytest.approx(number.objective_, rel=2 * model.tol)
        return
    scaled = (UNITS * X - other.feature_shift_) / other.feature_scale_
    np.testing.assert_allclose(other.predict_proba(UNITS * X), number.predict_proba(scaled), atol=1e-6)


@pytest.mark.parametrize("factor", [1.0, 0.1, 1e-3, 31.622776601683793, 1 / 3])
def test_multiples_are_read_as_they_were_written(factor):
    assert recipe.multiple(recipe.times_scale(factor)) == factor


def test_networks_with_a_kernel_see_columns_in_their_own_units():
    plain = LMSBNClassifier(kernel="rbf", tol=1e-8, random_state=0).fit(X, Y)
    moved = clone(plain).fit(UNITS * X, Y)
    np.testing.assert_allclose(moved.predict_proba(UNITS * X), plain.predict_proba(X), atol=1e-4)
    scaled = (X - plain.feature_shift_) / plain.feature_scale_
    number = clone(plain).set_params(C=1.0).fit(scaled, Y)
    np.testing.assert_array_equal(number.support_, plain.support_)
    np.testing.assert_allclose(number.predict_proba(scaled), plain.predict_proba(X), atol=1e-9)
