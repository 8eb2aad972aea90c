"""The multi-class support vector machine of Crammer and Singer as a scikit-learn classifier."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from scipy import sparse
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from lmbm_torch.estimators import kernel_functions
from lmbm_torch.estimators.base import warn_unless_reached
from lmbm_torch.estimators.kernel_functions import Kernel
from lmbm_torch.solvers.base import run
from lmbm_torch.solvers.chains import smo
from lmbm_torch.solvers.chains.kernel_problem import ChainKernelProblem
from lmbm_torch.solvers.chains.problems import chain_problem
from lmbm_torch.solvers.structural import frank_wolfe


class MultiClassSVM(ClassifierMixin, BaseEstimator):
    """A chain of one position: ½‖w‖² + C Σ max_y [1{y ≠ y_l} + ⟨w_y − w_{y_l}, φ(x_l)⟩].

    max_margin_markov_networks_survey_2003, section 6; intercepts are regularised like other weights. Solved
    by block-coordinate Frank–Wolfe with a linear kernel, else by SMO in the dual.

    Args:
        C: weight of the losses.
        kernel: ``"linear"``, ``"poly"``, ``"rbf"``, ``"precomputed"``, or a function of two sets of features
            that returns their matrix of values; all but the first need memory for the values between all
            training instances.
        gamma: of ``poly`` and ``rbf``; ``"scale"`` is 1 / (features · variance of all entries of X),
            ``"auto"`` is 1 / features.
        degree, coef0: of ``poly``, (gamma ⟨x, x'⟩ + coef0)^degree.
        tol: relative duality gap at which training ends.
        max_iter: the end of training, reached or not: a ConvergenceWarning tells.
        random_state: of the solver's order of visits.

    Attributes:
        classes_: the classes.
        intercept_: (classes,).
        coef_: (classes, features); linear kernel alone.
        dual_coef_: (classes, instances); other kernels alone.
        X_fit_: (instances, features); other kernels alone, None for ``"precomputed"``.
        objective_: the value of what training minimises; duality_gap_: relative to it; n_iter_: passes.
    """

    def __init__(
        self,
        C=1.0,
        *,
        kernel="linear",
        gamma="scale",
        degree=2,
        coef0=1.0,
        tol=1e-3,
        max_iter=1000,
        random_state=None,
    ):
        self.C = C
        self.kernel = kernel
        self.gamma = gamma
        self.degree = degree
        self.coef0 = coef0
        self.tol = tol
        self.max_iter = max_iter
        self.random_state = random_state

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.pairwise = self.kernel == "precomputed"
        return tags

    def fit(self, X, y, sample_weight=None):
        """Learn from instances (instances, features), dense or CSR, and their classes (instances,).

        Raises:
            ValueError: settings out of range, a single class.
        """
        validated: Any = validate_data(self, X, y, accept_sparse="csr", dtype=[np.float64, np.float32])
        X, y = validated
        X = sparse.csr_array(X) if sparse.issparse(X) else X
        check_classification_targets(y)
        self.classes_, codes = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"y: expected at least two classes, got one class, {self.classes_[0]!r}")
        if sample_weight is not None:
            sample_weight = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        seed = int(check_random_state(self.random_state).randint(2**31))
        settings = {"num_states": len(self.classes_), "C": self.C, "sample_weight": sample_weight}
        limits = {"tol": self.tol, "max_iter": self.max_iter, "seed": seed}
        start = np.arange(len(codes) + 1)
        if self.kernel == "linear":
            state = run(frank_wolfe, chain_problem(X, codes, start, **settings), **limits)
            features = state.weights.features
            self.coef_, self.intercept_ = features[:, :-1].copy(), features[:, -1].copy()
        else:
            self.kernel_ = kernel_functions.resolve(
                self.kernel, X, gamma=self.gamma, degree=self.degree, coef0=self.coef0, device="cpu"
            )
            X = X.astype(np.float64, copy=False)
            problem = ChainKernelProblem(gram_with_constant(self.kernel_, X), codes, start, **settings)
            state = run(smo, problem, **limits)
            self.dual_coef_ = problem.coef(state.nodes).T
            self.intercept_ = self.dual_coef_.sum(1)
            self.X_fit_ = None if self.kernel_.is_precomputed else X
        self.objective_, self.duality_gap_, self.n_iter_ = state.primal, state.gap, state.num_iters
        warn_unless_reached(self, "max_iter", state.gap)
        return self

    def decision_function(self, X):
        """Scores (instances, classes); their difference, (instances,), for two classes."""
        scores = self._scores(X)
        return scores[:, 1] - scores[:, 0] if len(self.classes_) == 2 else scores

    def predict(self, X):
        """The class of largest score of each instance, (instances,)."""
        best = self._scores(X).argmax(1)
        return self.classes_[best]

    def _scores(self, X) -> np.ndarray:
        check_is_fitted(self)
        kinds = [np.float64, np.float32]
        rows: Any = validate_data(self, X, accept_sparse="csr", dtype=kinds, reset=False)
        if self.kernel == "linear":
            return rows @ self.coef_.T + self.intercept_
        return self.kernel_.expand(rows, self.X_fit_, self.dual_coef_) + self.intercept_


def gram_with_constant(kernel: Kernel, X) -> np.ndarray:
    """k(x, x') + 1 between all training instances: the constant is the intercept's."""
    return 1.0 + kernel.gram(X, cache_bytes=0).rows(torch.arange(X.shape[0])).numpy()
