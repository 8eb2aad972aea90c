"""The multi-class support vector machine of Crammer and Singer as a scikit-learn classifier."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from lmbm_torch.estimators.chains.max_margin import row_scores, train_max_margin
from lmbm_torch.estimators.common.base import MultiClassClassifier
from lmbm_torch.estimators.common.calls import fit_call
from lmbm_torch.estimators.common.settings import RELATIVE_PENALTY, SHARED, Constraints


class MultiClassSVM(MultiClassClassifier):
    """A multi-class SVM of Crammer and Singer, of two classes the binary SVM; a chain of one position.

    Training minimises ½‖w‖² + C Σ max_y [1{y ≠ y_l} + ⟨w_y − w_{y_l}, φ(x_l)⟩]
    (max_margin_markov_networks_survey_2003, section 6), intercepts regularised like other weights, in the
    dual, see :mod:`~lmbm_torch.solvers.chains.multi_class`; with a linear kernel and more than some 2,900
    instances by block-coordinate Frank–Wolfe, or for many instances per weight, columns in unlike units or a
    large C by L-BFGS on smoothed hinges.

    Args:
        C: weight of the losses, a number or a multiple of ``"scale"`` such as ``"0.3*scale"``, see
            :func:`~lmbm_torch.fitting.recipe.units`; with a kernel relative to the mean of k(x, x).
        kernel, gamma, kernel_degree, coef0: see :class:`~lmbm_torch.estimators.LMSBNClassifier`; kernels
            other than the linear one need memory for the values of all pairs of training instances.
        free_intercept: whether intercepts are outside of the penalty, as in libsvm: for two classes
            scikit-learn's ``SVC`` with twice the C has the same decision function. The kernel values of all
            pairs of instances are needed. ``MultiOutputClassifier`` fits such a machine for each label.
        tol: relative duality gap at which training ends.
        max_iter: passes, or iterations of L-BFGS, at which training ends even above ``tol``, with a
            ConvergenceWarning.
        device: device of dense features' kernel values, such as ``"cpu"`` or ``"cuda"``.
        verbose: 1 for a progress bar with the gap (needs rich), 0 for none.
        random_state: seed of the solver's order of visits.

    Attributes:
        classes_: the classes.
        C_: the weight of the losses; feature_shift_, feature_scale_: (features,), training is on (X − shift)
            / scale; 0 and 1 for a number C.
        intercept_: (classes,).
        coef_: (classes, features), of the linear kernel.
        dual_coef_: (classes, instances), X_fit_: (instances, features), None for ``"precomputed"``; of other
            kernels.
        objective_: the value of the training objective; duality_gap_: relative to it; n_iter_: passes.

    Examples:
        >>> from lmbm_torch.estimators import MultiClassSVM
        >>> X, y = [[0.0], [1.0], [2.0], [3.0]], ["low", "low", "high", "high"]
        >>> MultiClassSVM(random_state=0).fit(X, y).predict([[2.5]])
        array(['high'], dtype='<U4')
    """

    _accepted: ClassVar[Constraints] = {**SHARED, "C": RELATIVE_PENALTY, "free_intercept": ["boolean"]}

    def __init__(
        self,
        C: float | str = 1.0,
        *,
        kernel="linear",
        gamma="scale",
        kernel_degree=3,
        coef0=1.0,
        free_intercept=False,
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
        self.free_intercept = free_intercept
        self.tol = tol
        self.max_iter = max_iter
        self.device = device
        self.verbose = verbose
        self.random_state = random_state

    @fit_call
    def fit(self, X, y, sample_weight=None):
        """Train on instances (instances, features), dense or CSR, and their classes (instances,).

        Raises:
            ValueError: parameters out of range, a single class.
        """
        X, codes, weight = self._validate_fit(X, y, sample_weight)
        options = {"sample_weight": weight, "free_intercept": self.free_intercept}
        train_max_margin(self, X, codes, np.arange(len(codes) + 1), **options)
        return self

    def _scores(self, X) -> np.ndarray:
        return row_scores(self, self._validate_predict(X))
