"""Training of chain CRFs with a kernel, in the dual (dual_optimization_conditional_models_2006)."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from lmbm_torch.estimators.chains.base import ProbabilisticSequenceClassifier, by_position
from lmbm_torch.estimators.common.kernels import Kernel, check_gram, relative_penalty
from lmbm_torch.solvers.chains import tree_likelihood
from lmbm_torch.solvers.chains.tree_likelihood import TreeLikelihood
from lmbm_torch.solvers.gram import PrecomputedGram


def fit_kernel(classifier: ProbabilisticSequenceClassifier, X: Any, y: Any, sample_weight: Any) -> None:
    """Train a chain CRF whose scores of positions are kernel expansions, and set the fitted attributes.

    Training minimises ½‖w‖² − C Σ log p(y | x) by steps on the marginals of each chain in turn; the intercept
    is a constant 1 added to the kernel.

    Args:
        classifier: classifier with the parameters of the kernel.
        X, y, sample_weight: the arguments of ``fit``.

    Raises:
        ValueError: the kernel values of all positions need too much memory, or a weight is 0.
    """
    estimator: Any = classifier
    rows, codes = classifier._validate_fit(X, y)
    weights = classifier._weights(sample_weight, rows.start[1:])
    if weights is not None and not (weights > 0).all():
        raise ValueError("sample_weight: expected weights above 0 with a kernel, got others")
    check_gram(len(codes))
    by_row = by_position(weights, rows.start)
    features = rows.features.astype(np.float64, copy=False)
    estimator.kernel_ = kernel = Kernel.of(classifier, features, by_row, estimator.device)
    estimator.feature_shift_, estimator.feature_scale_ = kernel.shift, kernel.scale
    C = estimator.C if estimator.c2 is None else 1 / (2 * estimator.c2)
    estimator.C_ = relative_penalty(C, kernel, features, by_row)
    upper = estimator.C_ * (np.ones(len(rows.start) - 1) if weights is None else weights)
    problem = TreeLikelihood.of_chains(
        PrecomputedGram(torch.from_numpy(kernel.matrix(features) + 1.0)),
        torch.from_numpy(codes),
        torch.from_numpy(np.diff(rows.start)),
        torch.from_numpy(upper),
        len(estimator.classes_),
    )
    state = classifier._run(tree_likelihood, problem)
    classifier._report(state)
    estimator.dual_coef_ = np.ascontiguousarray(state.coef.T.numpy())
    estimator.intercept_, estimator.X_fit_ = estimator.dual_coef_.sum(1), features
    estimator.transition_ = state.transition.numpy()
