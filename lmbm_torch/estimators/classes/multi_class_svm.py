"""The multi-class support vector machine of Crammer and Singer as a scikit-learn classifier."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from lmbm_torch.estimators.chains.max_margin import row_scores, train_max_margin
from lmbm_torch.estimators.common.base import MultiClassClassifier
from lmbm_torch.estimators.common.calls import fit_call
from lmbm_torch.estimators.common.settings import RELATIVE_PENALTY, SHARED, Constraints


class MultiClassSVM(MultiClassClassifier):
    """Multi-class SVM, a chain of one position: ½‖w‖² + C Σ max_y [1{y ≠ y_l} + ⟨w_y − w_{y_l}, φ(x_l)⟩].

    max_margin_markov_networks_survey_2003, section 6; intercepts are regularised like other weights. Solved
    in the dual, see :mod:`~lmbm_torch.solvers.chains.multi_class`; with a linear kernel and more than some
    2,900 instances by block-coordinate Frank–Wolfe, or where instances are many for the weights, columns in
    unlike units or C large, by L-BFGS on smoothed hinges.

    Args:
        C: weight of the losses: a number, for features as they are; or ``"scale"`` or a multiple such as
            ``"0.3*scale"``, see :func:`~lmbm_torch.fitting.recipe.units`; of a kernel relative to
            the mean of k(x, x), where one with a name sees features in those units.
        kernel: ``"linear"``, ``"poly"``, ``"rbf"``, ``"precomputed"``, or a function of two sets of features
            that returns their matrix of values; all but the first need memory for the values between all
            training instances.
        gamma: of ``poly`` and ``rbf``; ``"scale"`` is 1 / (features · variance of all entries of X),
            ``"auto"`` is 1 / features.
        kernel_degree, coef0: of ``poly``, (gamma ⟨x, x'⟩ + coef0)^kernel_degree.
        tol: relative duality gap at which training ends.
        max_iter: passes, or iterations of L-BFGS, at which training ends even above ``tol``, with a
            ConvergenceWarning.
        device: where dense features' kernels are evaluated, such as ``"cpu"`` or ``"cuda"``.
        verbose: 1 for a bar with the gap so far (needs rich), 0 for silence.
        random_state: of the solver's order of visits.

    Attributes:
        classes_: the classes.
        C_: the weight of the losses; feature_shift_, feature_scale_: (features,), training is on
            (X − shift) / scale; 0 and 1 for a number C.
        intercept_: (classes,).
        coef_: (classes, features); linear kernel alone.
        dual_coef_: (classes, instances); other kernels alone.
        X_fit_: (instances, features); other kernels alone, None for ``"precomputed"``.
        objective_: the value of the training objective; duality_gap_: relative to it; n_iter_: passes.
    """

    _accepted: ClassVar[Constraints] = {**SHARED, "C": RELATIVE_PENALTY}

    def __init__(
        self,
        C: float | str = 1.0,
        *,
        kernel="linear",
        gamma="scale",
        kernel_degree=3,
        coef0=1.0,
        tol=1e-3,
        max_iter=1000,
        device="cpu",
        verbose=0,
        random_state=None,
    ):
        self.C = C
        self.kernel = kernel
        self.gamma = gamma
        self.kernel_degree = kernel_degree
        self.coef0 = coef0
        self.tol = tol
        self.max_iter = max_iter
        self.device = device
        self.verbose = verbose
        self.random_state = random_state

    @fit_call
    def fit(self, X, y, sample_weight=None):
        """Learn from instances (instances, features), dense or CSR, and their classes (instances,).

        Raises:
            ValueError: settings out of range, a single class.
        """
        X, codes, weight = self._validate_fit(X, y, sample_weight)
        train_max_margin(self, X, codes, np.arange(len(codes) + 1), sample_weight=weight)
        return self

    def _scores(self, X) -> np.ndarray:
        return row_scores(self, self._validate_predict(X))
