"""Max-margin training of chains, linear or with a kernel; a chain of one position is a multi-class SVM."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from lmbm_torch.estimators.base import TrainedEstimator
from lmbm_torch.estimators.chains.base import by_position
from lmbm_torch.estimators.kernels import KernelMixin
from lmbm_torch.estimators.settings import RELATIVE_PENALTY, SHARED, Constraints
from lmbm_torch.solvers.base import run
from lmbm_torch.solvers.chains import multi_class, smo
from lmbm_torch.solvers.chains.kernel_problem import ChainKernelProblem
from lmbm_torch.solvers.chains.problems import chain_problem
from lmbm_torch.solvers.networks.problems import Features
from lmbm_torch.solvers.structural import frank_wolfe


class MaxMarginEstimator(KernelMixin, TrainedEstimator):
    """Scores of classes that minimise ½‖w‖² + C Σ max_y [Hamming(y_l, y) + score(x_l, y) − score(x_l, y_l)].

    By block-coordinate Frank–Wolfe on the weights with the linear kernel, else in the dual, where a constant 1
    added to the kernel is the intercept: by ascent in all classes of a position at once where no chain has two,
    else by SMO.

    Attributes:
        intercept_: (classes,).
        coef_: (classes, features); linear kernel alone.
        dual_coef_: (classes, rows), X_fit_: (rows, features) or None for ``"precomputed"``; other kernels.
    """

    _parameter_constraints: ClassVar[Constraints] = {**SHARED, "C": RELATIVE_PENALTY}

    classes_: np.ndarray

    def _train(self, X: Any, codes: np.ndarray, start: np.ndarray, **options: Any) -> np.ndarray:
        """Learn the scores and report the training; the transitions (classes, classes).

        Args:
            X: (rows, features), all chains one after another.
            codes: (rows,), indices into the classes.
            start: (chains + 1,), where each chain begins.
            options: of both problems.
        """
        options = {"num_states": len(self.classes_), **options}
        by_row = by_position(options.get("sample_weight"), start)
        limits = {"tol": self.tol, "max_iter": self.max_iter, "seed": self._seed()}
        if self.kernel == "linear":
            X = self._scaled(X, by_row)
            problem = chain_problem(X, codes, start, C=self.C_, **options)
            with self._progress() as progress:
                state = run(frank_wolfe, problem, progress=progress, **limits)
            features, transition = state.weights
            self.coef_, self.intercept_ = self._of_features(features[:, :-1], features[:, -1])
        else:
            kernel, X = self._resolve_kernel(X, self.device), X.astype(np.float64, copy=False)
            self._resolve_penalty(X, by_row)
            gram = kernel.matrix(X)
            gram += 1.0
            problem = ChainKernelProblem(gram, codes, start, C=self.C_, **options)
            alone = len(problem.upper) == len(codes)
            with self._progress() as progress:
                state = run(multi_class if alone else smo, problem, progress=progress, **limits)
            self.dual_coef_ = problem.coef(state.nodes).T
            self.intercept_ = self.dual_coef_.sum(1)
            self.X_fit_ = None if kernel.is_precomputed else X
            transition = state.transition
        self._report(state)
        return transition.reshape(len(self.classes_), -1).copy()

    def _row_scores(self, X: Features) -> np.ndarray:
        """Scores without transitions, (rows, classes)."""
        if self.kernel == "linear":
            return X @ self.coef_.T + self.intercept_
        return self.kernel_.expand(X, self.X_fit_, self.dual_coef_) + self.intercept_
