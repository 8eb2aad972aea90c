"""Max-margin training of chains, linear or with a kernel; a chain of one position is a multi-class SVM."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from scipy import sparse

from lmbm_torch.estimators.chains.base import by_position
from lmbm_torch.estimators.common.kernels import Kernel, KernelSettings, relative_penalty
from lmbm_torch.fitting.feature_units import are_steep, have_like_units, merged
from lmbm_torch.memory import limit_bytes, part_bytes
from lmbm_torch.solvers.base import run
from lmbm_torch.solvers.chains import multi_class, smo
from lmbm_torch.solvers.chains.kernel_problem import ChainKernelProblem
from lmbm_torch.solvers.chains.linear import ChainMargins
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


class MaxMarginWeights(NamedTuple):
    """Scores of classes, of features in the units of training.

    Args:
        coef: (classes, features) of the linear kernel, (classes, rows) duals of any other.
        intercept: (classes,).
        transition: (classes, classes), from row to column.
        state: the solver's last.
    """

    coef: np.ndarray
    intercept: np.ndarray
    transition: np.ndarray
    state: Any


@dataclass(frozen=True, kw_only=True)
class MaxMarginTrainer:
    """Learns scores that minimise ½‖w‖² + C Σ max_y [Hamming(y_l, y) + score(x_l, y) − score(x_l, y_l)].

    With the linear kernel by L-BFGS on smoothed hinges where chains are long or positions many for the
    weights, of columns in unlike units or a large C where they are not few, else by block-coordinate
    Frank–Wolfe on the weights; with another by SMO on the factored dual, where a constant 1 added to the
    kernel is the intercept. Where no chain has two positions the dual is maximised in all classes of a
    position at once, with the linear kernel, too, where positions are few.

    Args:
        C: weight of the losses.
        num_states: classes.
        tol, max_iter: relative duality gap, and passes, at which training ends.
        progress: makes the callback for the solver's states.
        draw_seed: draws the seed of the order of visits.
        options: of all problems, such as weights of the chains.
    """

    C: float
    num_states: int
    tol: float
    max_iter: int
    progress: Callable[[], AbstractContextManager[Callable[[Any], None] | None]]
    draw_seed: Callable[[], int]
    options: Mapping[str, Any]

    def train_linear(self, X: Any, codes: np.ndarray, start: np.ndarray) -> MaxMarginWeights:
        """Return the weights of features.

        Args:
            X: (rows, features), all chains one after another.
            codes: (rows,), indices into the classes.
            start: (chains + 1,), where each chain begins.
        """
        X, back = merged(X)
        options = {"num_states": self.num_states, **self.options}
        has_single_positions = len(start) == len(codes) + 1
        has_values = has_single_positions and 8 * len(codes) ** 2 <= part_bytes(_GRAM_BYTES)
        if _suits_smoothing(X, start, self.num_states, self.C):
            state = self._solved(smoothing, ChainMargins(X, codes, start, C=self.C, **options))
            coef, constant, transition = _of_weights(state.weights)
        elif has_values:
            X = X.astype(np.float64, copy=False)
            gram: Any = X @ X.T
            gram = gram.toarray() if sparse.issparse(gram) else gram
            duals, constant, transition, state = self.train_on_values(gram, codes, start)
            coef = (X.T @ duals.T).T
        else:
            problem = chain_problem(X, codes, start, C=self.C, **options)
            state = self._solved(frank_wolfe, problem, seed=self.draw_seed())
            coef, constant, transition = _of_weights(state.weights)
        return MaxMarginWeights(coef @ back, constant, self._square(transition), state)

    def train_on_values(self, gram: np.ndarray, codes: np.ndarray, start: np.ndarray) -> MaxMarginWeights:
        """Return the duals for kernel values (rows, rows), which are changed; see :meth:`train_linear`."""
        gram += 1.0
        options = {"num_states": self.num_states, **self.options}
        problem = ChainKernelProblem(gram, codes, start, C=self.C, **options)
        solver = multi_class if problem.has_single_positions else smo
        state = self._solved(solver, problem, seed=self.draw_seed())
        duals = problem.coef(state.nodes).T
        return MaxMarginWeights(duals, duals.sum(1), self._square(state.transition), state)

    def _square(self, transition: np.ndarray) -> np.ndarray:
        return transition.reshape(self.num_states, -1).copy()

    def _solved(self, solver: Any, problem: Any, **settings: Any) -> Any:
        """The solver's last state."""
        with self.progress() as progress:
            limits = {"tol": self.tol, "max_iter": self.max_iter, "progress": progress}
            return run(solver, problem, **settings, **limits)


class MaxMarginEstimator(KernelSettings, Protocol):
    """An estimator whose scores are trained by :func:`train_max_margin`.

    Attributes:
        intercept_: (classes,).
        coef_: (classes, features); linear kernel alone.
        dual_coef_: (classes, rows), X_fit_: (rows, features) or None for ``"precomputed"``; other kernels.
    """

    C_: float
    feature_shift_: np.ndarray | float
    feature_scale_: np.ndarray | float
    tol: float
    max_iter: int
    device: Any
    classes_: np.ndarray
    kernel_: Kernel
    intercept_: np.ndarray
    coef_: np.ndarray
    dual_coef_: np.ndarray
    X_fit_: Any

    def _progress(self) -> AbstractContextManager[Callable[[Any], None] | None]: ...

    def _seed(self) -> int: ...

    def _report(self, state: Any) -> None: ...

    def _scaled(self, X: Features, sample_weight: np.ndarray | None) -> Features: ...

    def _of_features(self, coef: np.ndarray, intercept: np.ndarray) -> tuple[np.ndarray, np.ndarray]: ...


def train_max_margin(
    estimator: MaxMarginEstimator, X: Any, codes: np.ndarray, start: np.ndarray, **options: Any
) -> np.ndarray:
    """Learn the scores of an estimator and report its training; the transitions (classes, classes).

    Args:
        X, codes, start: see :meth:`MaxMarginTrainer.train_linear`.
        options: of all problems, such as weights of the chains.
    """
    by_row, is_linear = by_position(options.get("sample_weight"), start), estimator.kernel == "linear"
    if is_linear:
        X = estimator._scaled(X, by_row)
    else:
        kernel, X = Kernel.of(estimator, X, by_row, estimator.device), X.astype(np.float64, copy=False)
        estimator.kernel_ = kernel
        estimator.feature_shift_, estimator.feature_scale_ = kernel.shift, kernel.scale
        estimator.C_ = relative_penalty(estimator.C, kernel, X, by_row)
        if not kernel.is_precomputed:
            _check_gram(len(codes))
    trainer = MaxMarginTrainer(
        C=estimator.C_,
        num_states=len(estimator.classes_),
        tol=estimator.tol,
        max_iter=estimator.max_iter,
        progress=estimator._progress,
        draw_seed=estimator._seed,
        options=options,
    )
    if is_linear:
        found = trainer.train_linear(X, codes, start)
        estimator.coef_, estimator.intercept_ = estimator._of_features(found.coef, found.intercept)
    else:
        found = trainer.train_on_values(estimator.kernel_.matrix(X), codes, start)
        estimator.dual_coef_, estimator.intercept_ = found.coef, found.intercept
        estimator.X_fit_ = None if estimator.kernel_.is_precomputed else X
    estimator._report(found.state)
    return found.transition


def row_scores(estimator: MaxMarginEstimator, X: Features) -> np.ndarray:
    """Return the scores without transitions, (rows, classes), of a fitted estimator."""
    if estimator.kernel == "linear":
        return X @ estimator.coef_.T + estimator.intercept_
    return estimator.kernel_.expand(X, estimator.X_fit_, estimator.dual_coef_) + estimator.intercept_


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
