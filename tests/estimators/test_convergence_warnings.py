"""Whoever trains with a limit that comes before the tolerance is told so, as scikit-learn's users expect."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

from lmbm_torch.estimators import (
    ChainCRF,
    ChainSVM,
    KernelLogisticRegression,
    LMBMClassifier,
    LMSBNClassifier,
    MultiClassSVM,
    StructuralSVMClassifier,
)

GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(40, 3))
LABELS = (X @ GENERATOR.normal(size=(3, 4)) + GENERATOR.normal(size=(40, 4)) > 0).astype(float)
CLASSES = LABELS[:, 0] + LABELS[:, 1]
SEQUENCES = [*X.reshape(10, 4, 3)], [*CLASSES.reshape(10, 4)]


@pytest.mark.parametrize(
    ("estimator", "limit", "data"),
    [
        (LMBMClassifier(), "max_iter", (X, LABELS)),
        (LMBMClassifier(solver="dual_coordinate"), "max_iter", (X, LABELS)),
        (LMSBNClassifier(), "max_iter", (X, LABELS)),
        (LMSBNClassifier(kernel="rbf"), "max_iter", (X, LABELS)),
        (StructuralSVMClassifier(), "max_iter", (X, LABELS)),
        (KernelLogisticRegression(), "max_iter", (X, CLASSES)),
        (MultiClassSVM(), "max_iter", (X, CLASSES)),
        (MultiClassSVM(kernel="rbf"), "max_iter", (X, CLASSES)),
        (ChainCRF(), "max_iter", SEQUENCES),
        (ChainSVM(), "max_iter", SEQUENCES),
        (ChainSVM(kernel="rbf"), "max_iter", SEQUENCES),
    ],
)
def test_a_limit_before_the_tolerance_is_told(estimator, limit, data):
    name = type(estimator).__name__
    with pytest.warns(ConvergenceWarning, match=f"^{name}: .* above tol=1e-10; raise {limit}=1 ") as told:
        estimator.set_params(**{limit: 1, "tol": 1e-10}).fit(*data)
    assert [warning.filename for warning in told] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        estimator.set_params(**{limit: 10_000, "tol": 1e-2}).fit(*data)
