"""C="scale": features in another unit change nothing, and what is learned is that of scaled features."""

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

X, Y = random_inputs(0, 60, 4, 4)
MODELS = {
    "network": LMSBNClassifier(random_state=0),
    "machine": LMBMClassifier(random_state=0),
    "structural": StructuralSVMClassifier(random_state=0),
    "conditional RBM": ConditionalRBMClassifier(num_hidden=2, max_iter=5, random_state=0),
}
every = pytest.mark.parametrize("model", MODELS.values(), ids=MODELS.keys())


@every
def test_is_a_penalty_of_one_for_scaled_features(model):
    scale = np.sqrt((X**2).sum(1).mean())
    relative = clone(model).fit(7 * X, Y)
    absolute = clone(model).set_params(C=1.0).fit(X / scale, Y)
    assert (relative.C_, relative.feature_scale_) == (1.0, pytest.approx(7 * scale))
    assert (absolute.C_, absolute.feature_scale_) == (1.0, 1.0)
    if isinstance(model, StructuralSVMClassifier):
        # Rounding turns its solver to another path; both ends are within tol of the optimum.
        assert relative.objective_ == pytest.approx(absolute.objective_, rel=2 * model.tol)
        return
    np.testing.assert_allclose(relative.predict_proba(7 * X), absolute.predict_proba(X / scale), atol=1e-6)
    if hasattr(relative, "coef_"):
        np.testing.assert_allclose(relative.coef_, absolute.coef_ / (7 * scale), atol=1e-6)


@every
def test_sparse_and_single_precision_features_are_scaled_alike(model):
    dense = clone(model).fit(X, Y)
    for other in (sparse.csr_array(X), X.astype(np.float32)):
        assert clone(model).fit(other, Y).feature_scale_ == pytest.approx(dense.feature_scale_, rel=1e-6)


def test_weights_of_zero_leave_an_instance_out_of_the_scale():
    weight = np.ones(len(X))
    weight[:20] = 0
    far = X.copy()
    far[:20] *= 1e3
    fitted = LMSBNClassifier(ordering="index", random_state=0).fit(far, Y, weight)
    assert fitted.feature_scale_ == pytest.approx(np.sqrt((X[20:] ** 2).sum(1).mean()))


def test_features_of_zero_are_taken_as_they_are():
    assert LMSBNClassifier(random_state=0).fit(0 * X, Y).feature_scale_ == 1


def test_refused_with_features_in_cliques():
    machine = LMBMClassifier(cliques=[(0, 1), (2, 3)], clique_features=[1, None])
    with pytest.raises(ValueError, match="C: expected a number with clique_features"):
        machine.fit(X, Y)
    assert clone(machine).set_params(C=1.0).fit(X, Y).feature_scale_ == 1
    with pytest.raises(ValueError, match="The 'C' parameter of LMSBNClassifier"):
        LMSBNClassifier("auto").fit(X, Y)
