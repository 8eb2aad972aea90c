"""Kernel multinomial logistic regression as a scikit-learn classifier."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from lmbm_torch.checks import check_count, check_positive
from lmbm_torch.estimators import kernel_functions
from lmbm_torch.estimators.base import warn_unless_reached
from lmbm_torch.solvers.base import run
from lmbm_torch.solvers.gram import Gram
from lmbm_torch.solvers.logistic import smo
from lmbm_torch.solvers.logistic.problems import MulticlassProblem


class KernelLogisticRegression(ClassifierMixin, BaseEstimator):
    """Multinomial logistic regression with a kernel, in the dual (dual_optimization_conditional_models_2006).

    Training minimises ½‖w‖² + C Σ_i s_i (−log p(y_i | x_i)), p(y | x) ∝ exp⟨w_y, φ(x)⟩, without an intercept
    (a polynomial kernel's ``coef0`` holds one); C = 1/λ of the paper. Kernel values are evaluated as they are
    needed, so memory grows with the number of instances, not its square.

    Args:
        C: weight of the losses.
        kernel: ``"rbf"``, ``"poly"``, ``"linear"``, ``"precomputed"``, or a function of two sets of features
            that returns their matrix of values.
        gamma: of ``rbf`` and ``poly``; 1/(2σ²) for a bandwidth σ. ``"scale"`` is 1 / (features · variance of
            all entries of X), ``"auto"`` 1 / features, as for scikit-learn's support vector machines.
        degree, coef0: of ``poly``, (gamma ⟨x, x'⟩ + coef0)^degree.
        tol: relative duality gap at which training ends.
        max_iter: passes after which training ends, reached or not: a ConvergenceWarning tells.
        cache_size: MiB of kernel values that are kept.
        device: where dense features' kernels are evaluated and the dual is solved.
        random_state: of the order of visits.

    Attributes:
        classes_: the classes.
        dual_coef_: (classes, instances), C s_i (δ_iy − α_iy).
        X_fit_: the training instances with any weight; not for ``precomputed``.
        gamma_: as resolved.
        objective_: the primal objective; duality_gap_: relative to it; n_iter_: passes made.
    """

    def __init__(
        self,
        C=1.0,
        *,
        kernel="rbf",
        gamma="scale",
        degree=3,
        coef0=1.0,
        tol=1e-4,
        max_iter=10_000,
        cache_size=512,
        device="cpu",
        random_state=None,
    ):
        self.C = C
        self.kernel = kernel
        self.gamma = gamma
        self.degree = degree
        self.coef0 = coef0
        self.tol = tol
        self.max_iter = max_iter
        self.cache_size = cache_size
        self.device = device
        self.random_state = random_state

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.pairwise = self.kernel == "precomputed"
        return tags

    def fit(self, X, y, sample_weight=None):
        """Learn from instances (instances, features), dense or CSR, and their classes (instances,).

        Raises:
            ValueError: settings out of range, a single class, sample weights that are all zero.
        """
        check_positive("C", self.C)
        check_positive("tol", self.tol)
        check_count("max_iter", self.max_iter)
        validated: Any = validate_data(self, X, y, accept_sparse="csr", dtype=[np.float64, np.float32])
        X, y = validated
        check_classification_targets(y)
        self.classes_, codes = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"y: expected at least two classes, got one class, {self.classes_[0]!r}")
        weight = np.ones(len(codes))
        if sample_weight is not None:
            weight = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        # Instances of no weight have no dual variables.
        used = np.flatnonzero(weight)
        settings: Any = {name: getattr(self, name) for name in ("gamma", "degree", "coef0", "device")}
        self.kernel_ = kernel_functions.resolve(self.kernel, X, **settings)
        self.gamma_ = self.kernel_.gamma
        cache_bytes = int(self.cache_size * 2**20)
        if self.kernel_.is_precomputed:
            gram = self.kernel_.gram(X[np.ix_(used, used)], cache_bytes)
            self.dual_coef_ = np.zeros((len(self.classes_), len(codes)))
            self.dual_coef_[:, used] = self._solve(gram, codes[used], weight[used])
        else:
            self.X_fit_ = X[used]
            gram = self.kernel_.gram(self.X_fit_, cache_bytes)
            self.dual_coef_ = self._solve(gram, codes[used], weight[used])
        warn_unless_reached(self, "max_iter", self.duality_gap_)
        return self

    def decision_function(self, X):
        """Scores ⟨w_y, φ(x)⟩, (instances, classes); their difference, (instances,), for two classes."""
        scores = self._scores(X)
        return scores[:, 1] - scores[:, 0] if len(self.classes_) == 2 else scores

    def predict(self, X):
        """The most probable class of each instance, (instances,)."""
        best = self._scores(X).argmax(1)
        return self.classes_[best]

    def predict_log_proba(self, X):
        """log P(class | x), (instances, classes)."""
        return torch.from_numpy(self._scores(X)).log_softmax(1).numpy()

    def predict_proba(self, X):
        """P(class | x), (instances, classes)."""
        return np.exp(self.predict_log_proba(X))

    def _solve(self, gram: Gram, codes: np.ndarray, weight: np.ndarray) -> np.ndarray:
        """The dual coefficients (classes, instances) of instances that all have some weight."""
        device = torch.device(self.device)
        targets = torch.nn.functional.one_hot(torch.from_numpy(codes), len(self.classes_)).double()
        problem = MulticlassProblem(gram, targets.to(device), torch.from_numpy(self.C * weight).to(device))
        seed = int(check_random_state(self.random_state).randint(2**31))
        state = run(smo, problem, tol=self.tol, max_iter=self.max_iter, seed=seed)
        self.objective_, self.duality_gap_, self.n_iter_ = state.primal, state.gap, state.num_iters
        return state.coef.mT.cpu().numpy()

    def _scores(self, X) -> np.ndarray:
        check_is_fitted(self)
        kinds = [np.float64, np.float32]
        rows: Any = validate_data(self, X, accept_sparse="csr", dtype=kinds, reset=False)
        fitted = None if self.kernel_.is_precomputed else self.X_fit_
        return self.kernel_.expand(rows, fitted, self.dual_coef_)
