"""Classifiers with a single class for each instance: kernel logistic regression and multi-class SVM."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch

from lmbm_torch.estimators.chains.max_margin import row_scores, train_max_margin
from lmbm_torch.estimators.common.base import MultiClassClassifier
from lmbm_torch.estimators.common.calls import answer_call, fit_call
from lmbm_torch.estimators.common.kernels import Kernel, relative_penalty
from lmbm_torch.estimators.common.settings import NOT_NEGATIVE, RELATIVE_PENALTY, SHARED, Constraints
from lmbm_torch.solvers import smo
from lmbm_torch.solvers.smo import MulticlassProblem


class KernelLogisticRegression(MultiClassClassifier):
    """Multinomial logistic regression with a kernel, trained in the dual.

    Training minimises ½‖w‖² + C Σ_i s_i (−log p(y_i | x_i)) with p(y | x) ∝ exp⟨w_y, φ(x)⟩ and sample weights
    s_i (dual_optimization_conditional_models_2006; C is 1/λ of the paper). There is no intercept; ``coef0``
    of a polynomial kernel acts as an intercept. Kernel values are computed when needed: memory grows linearly
    with the number of instances.

    Args:
        C: weight of the losses, a number or a multiple of ``"scale"`` such as ``"0.3*scale"``; ``"scale"`` is
            1 / mean of k(x, x) for scaled features, see :func:`~lmbm_torch.fitting.recipe.units`.
        kernel, gamma, kernel_degree, coef0: see :class:`~lmbm_torch.estimators.LMSBNClassifier`.
        tol: relative duality gap at which training ends.
        max_iter: passes at which training ends even above ``tol``, with a ConvergenceWarning.
        cache_size: memory in MiB for kernel values that are kept.
        device: device for the kernel values of dense features and the products with dual variables; steps
            within a block of 64 instances run on the CPU.
        verbose: 1 for a progress bar with the duality gap (needs rich); 0 for no bar.
        random_state: seed for the order in which the solver visits instances.

    Attributes:
        classes_: the classes.
        dual_coef_: (classes, instances), coefficients of kernel values, C_ s_i (δ_iy − α_iy).
        X_fit_: the training instances with a positive weight; None for ``precomputed``.
        C_, gamma_: the values of C and gamma as numbers.
        objective_: the primal objective.
        duality_gap_: the duality gap relative to ``objective_``.
        n_iter_: number of passes.

    Examples:
        >>> from lmbm_torch.estimators import KernelLogisticRegression
        >>> X, y = [[0.0], [1.0], [2.0], [3.0]], ["low", "low", "high", "high"]
        >>> KernelLogisticRegression(random_state=0).fit(X, y).predict([[2.5]])
        array(['high'], dtype='<U4')
    """

    _accepted: ClassVar[Constraints] = {**SHARED, "C": RELATIVE_PENALTY, "cache_size": [NOT_NEGATIVE]}

    def __init__(
        self,
        C: float | str = 1.0,
        *,
        kernel="rbf",
        gamma="scale",
        kernel_degree=3,
        coef0=1.0,
        tol=1e-4,
        max_iter=10_000,
        cache_size=512,
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
        self.cache_size = cache_size
        self.device = device
        self.verbose = verbose
        self.random_state = random_state

    @fit_call
    def fit(self, X, y, sample_weight=None):
        """Train on instances (instances, features), dense or CSR, and the classes (instances,).

        Raises:
            ValueError: a parameter is out of range, there is a single class, or all sample weights are zero.
        """
        X, codes, weight = self._validate_fit(X, y, sample_weight)
        weight = np.ones(len(codes)) if weight is None else weight
        # Leave out instances of weight 0, which have no dual variables.
        used = np.flatnonzero(weight)
        self.kernel_ = Kernel.of(self, X, weight, self.device)
        self.gamma_ = self.kernel_.gamma
        self.feature_shift_, self.feature_scale_ = self.kernel_.shift, self.kernel_.scale
        rows = X[np.ix_(used, used)] if self.kernel_.is_precomputed else X[used]
        self.C_ = relative_penalty(self.C, self.kernel_, rows, weight[used])
        gram = self.kernel_.gram(rows, int(self.cache_size * 2**20))
        classes = torch.nn.functional.one_hot(torch.from_numpy(codes[used]), len(self.classes_)).double()
        weights = torch.from_numpy(self.C_ * weight[used]).to(self._device)
        problem = MulticlassProblem(gram, classes.to(self._device), weights)
        state = self._run(smo, problem, seed=self._seed())
        coef = state.coef.mT.cpu().numpy()
        self.X_fit_, self.dual_coef_ = rows, coef
        if self.kernel_.is_precomputed:
            self.X_fit_, self.dual_coef_ = None, np.zeros((len(self.classes_), len(codes)))
            self.dual_coef_[:, used] = coef
        self._report(state)
        return self

    def predict_log_proba(self, X):
        """Return log P(class | x), (instances, classes)."""
        return torch.from_numpy(self._scores(X)).log_softmax(1).numpy()

    @answer_call
    def predict_proba(self, X):
        """Return P(class | x), (instances, classes)."""
        return np.exp(self.predict_log_proba(X))

    def _scores(self, X) -> np.ndarray:
        X = self._validate_predict(X)
        return self.kernel_.expand(X, self.X_fit_, self.dual_coef_)


class MultiClassSVM(MultiClassClassifier):
    """The multi-class SVM of Crammer and Singer; for two classes, the usual SVM.

    Training minimises ½‖w‖² + C Σ max_y [1{y ≠ y_l} + ⟨w_y − w_{y_l}, φ(x_l)⟩]
    (max_margin_markov_networks_survey_2003, section 6); intercepts are regularised like other weights. The
    problem is solved in the dual, see :mod:`~lmbm_torch.solvers.chains.multi_class`. With a linear kernel and
    more than some 2,900 instances the solver is block-coordinate Frank–Wolfe, or L-BFGS on smoothed hinges if
    there are many instances per weight, columns have unlike units, or C is large.

    Args:
        C: weight of the losses, a number or a multiple of ``"scale"`` such as ``"0.3*scale"``, see
            :func:`~lmbm_torch.fitting.recipe.units`; with a kernel, ``"scale"`` is 1 / mean of k(x, x).
        kernel, gamma, kernel_degree, coef0: see :class:`~lmbm_torch.estimators.LMSBNClassifier`; kernels
            other than the linear one need memory for the values of all pairs of training instances.
        free_intercept: whether intercepts are not regularised, as in libsvm: for two classes scikit-learn's
            ``SVC`` with twice the C then has the same decision function. This needs memory for the kernel
            values of all pairs of instances. ``MultiOutputClassifier`` fits such a machine for each label.
        tol: relative duality gap at which training ends.
        max_iter: passes, or iterations of L-BFGS, at which training ends even above ``tol``, with a
            ConvergenceWarning.
        device: device for the kernel values of dense features, such as ``"cpu"`` or ``"cuda"``.
        verbose: 1 for a progress bar with the duality gap (needs rich); 0 for no bar.
        random_state: seed for the order in which the solver visits instances.

    Attributes:
        classes_: the classes.
        C_: the weight of the losses.
        feature_shift_, feature_scale_: (features,), training takes (X − shift) / scale; 0, 1 if unscaled.
        intercept_: (classes,).
        coef_: (classes, features), for the linear kernel.
        dual_coef_: (classes, instances), for other kernels.
        X_fit_: (instances, features), for other kernels; None for ``"precomputed"``.
        objective_: the value of the training objective.
        duality_gap_: the duality gap relative to ``objective_``.
        n_iter_: number of passes.

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
        """Train on instances (instances, features), dense or CSR, and the classes (instances,).

        Raises:
            ValueError: a parameter is out of range, or there is a single class.
        """
        X, codes, weight = self._validate_fit(X, y, sample_weight)
        options = {"sample_weight": weight, "free_intercept": self.free_intercept}
        train_max_margin(self, X, codes, np.arange(len(codes) + 1), **options)
        return self

    def _scores(self, X) -> np.ndarray:
        return row_scores(self, self._validate_predict(X))
