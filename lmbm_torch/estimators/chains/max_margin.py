"""Max-margin training of chains, linear or with a kernel; a chain of one position is a multi-class SVM."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from scipy import sparse

from lmbm_torch.estimators.base import TrainedEstimator
from lmbm_torch.estimators.chains.base import by_position
from lmbm_torch.estimators.equal_columns import merged
from lmbm_torch.estimators.kernels import KernelMixin
from lmbm_torch.estimators.settings import RELATIVE_PENALTY, SHARED, Constraints
from lmbm_torch.fitting.feature_units import are_steep, have_like_units
from lmbm_torch.memory import limit_bytes, part_bytes
from lmbm_torch.solvers.base import run
from lmbm_torch.solvers.chains import multi_class, smo
from lmbm_torch.solvers.chains.kernel_problem import ChainKernelProblem
from lmbm_torch.solvers.chains.margins import ChainMargins
from lmbm_torch.solvers.chains.problems import chain_problem
from lmbm_torch.solvers.networks.problems import Features
from lmbm_torch.solvers.structural import frank_wolfe, smoothing
from lmbm_torch.solvers.structural.problems import StructuralWeights

# Size up to which the linear kernel's values between all positions are held: beyond it steps with them take
# longer than those of Frank–Wolfe on the weights.
_GRAM_BYTES = 2**26
# The most that values of other kernels, which are all held, may take.
_MAX_GRAM_BYTES = 2**34
# Frank–Wolfe's passes grow with the chains' length, gradients of smoothed hinges with the weights for each
# position: these take less where length · positions / weights is above so much (measured from 1 to 700).
_MANY = 15
# Of columns in unlike units, and of steep losses, dual steps make little: so many are enough there.
_ENOUGH = 2


class MaxMarginEstimator(KernelMixin, TrainedEstimator):
    """Scores of classes that minimise ½‖w‖² + C Σ max_y [Hamming(y_l, y) + score(x_l, y) − score(x_l, y_l)].

    With the linear kernel by L-BFGS on smoothed hinges where chains are long or positions many for the
    weights, of columns in unlike units or a large C where they are not few, else by block-coordinate
    Frank–Wolfe on the weights; with another by SMO on the factored dual, where a constant 1 added to the
    kernel is the intercept. Where no chain has two positions the dual is maximised in all classes of a
    position at once, with the linear kernel, too, where positions are few.

    Attributes:
        intercept_: (classes,).
        coef_: (classes, features); linear kernel alone.
        dual_coef_: (classes, rows), X_fit_: (rows, features) or None for ``"precomputed"``; other kernels.
    """

    _accepted: ClassVar[Constraints] = {**SHARED, "C": RELATIVE_PENALTY}

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
        if self.kernel == "linear":
            X, back = merged(self._scaled(X, by_row))
            has_single_positions = len(start) == len(codes) + 1
            has_values = has_single_positions and 8 * len(codes) ** 2 <= part_bytes(_GRAM_BYTES)
            if _suits_smoothing(X, start, options["num_states"], self.C_):
                state = self._solved(smoothing, ChainMargins(X, codes, start, C=self.C_, **options))
                coef, constant, transition = _of_weights(state.weights)
            elif has_values:
                X = X.astype(np.float64, copy=False)
                gram = X @ X.T
                gram = gram.toarray() if sparse.issparse(gram) else gram
                state, duals = self._from_values(gram, codes, start, **options)
                coef, constant, transition = (X.T @ duals.T).T, duals.sum(1), state.transition
            else:
                problem = chain_problem(X, codes, start, C=self.C_, **options)
                state = self._solved(frank_wolfe, problem, seed=self._seed())
                coef, constant, transition = _of_weights(state.weights)
            self.coef_, self.intercept_ = self._of_features(coef @ back, constant)
        else:
            kernel, X = self._resolve_kernel(X, by_row, self.device), X.astype(np.float64, copy=False)
            self._resolve_penalty(X, by_row)
            if not kernel.is_precomputed:
                _check_gram(len(codes))
            state, self.dual_coef_ = self._from_values(kernel.matrix(X), codes, start, **options)
            self.intercept_ = self.dual_coef_.sum(1)
            self.X_fit_ = None if kernel.is_precomputed else X
            transition = state.transition
        self._report(state)
        return transition.reshape(len(self.classes_), -1).copy()

    def _from_values(
        self, gram: np.ndarray, codes: np.ndarray, start: np.ndarray, **options: Any
    ) -> tuple[Any, np.ndarray]:
        """The last state for kernel values (rows, rows), which are changed, and its duals (classes, rows)."""
        gram += 1.0
        problem = ChainKernelProblem(gram, codes, start, C=self.C_, **options)
        solver = multi_class if problem.has_single_positions else smo
        state = self._solved(solver, problem, seed=self._seed())
        return state, problem.coef(state.nodes).T

    def _solved(self, solver: Any, problem: Any, **settings: Any) -> Any:
        """The solver's last state."""
        with self._progress() as progress:
            limits = {"tol": self.tol, "max_iter": self.max_iter, "progress": progress}
            return run(solver, problem, **settings, **limits)

    def _row_scores(self, X: Features) -> np.ndarray:
        """Scores without transitions, (rows, classes)."""
        if self.kernel == "linear":
            return X @ self.coef_.T + self.intercept_
        return self.kernel_.expand(X, self.X_fit_, self.dual_coef_) + self.intercept_


def _of_weights(weights: StructuralWeights) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Weights of the features, constants, and transitions."""
    return weights.features[:, :-1], weights.features[:, -1], weights.couplings


def _suits_smoothing(X: Features, start: np.ndarray, num_states: int, C: float) -> bool:
    """Whether gradients of smoothed hinges take less than passes over the duals.

    A chain's length counts as often as it has positions: a long one among short ones is what all wait for.
    """
    rows: Any = X
    weights = num_states * (rows.shape[1] + 1 + num_states)
    many = np.square(np.diff(start)).sum() / weights
    return bool(many >= _MANY or (many >= _ENOUGH and (are_steep(X, C) or not have_like_units(rows))))


def _check_gram(rows: int) -> None:
    """Raise ValueError where the kernel values of all pairs are more than memory may hold."""
    needed, most = 8 * rows**2, limit_bytes(_MAX_GRAM_BYTES)
    if needed > most:
        raise ValueError(
            f"kernel: expected kernel values of at most {most / 2**30:.3g} GiB, got {needed / 2**30:.3g} GiB "
            f"for {rows} positions; lmbm_torch.memory_budget sets the limit, and the linear kernel needs none"
        )
