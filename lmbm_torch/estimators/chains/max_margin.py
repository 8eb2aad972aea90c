"""Max-margin training of chains, linear or with a kernel; chains of one position are multi-class SVMs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import sparse

from lmbm_torch.estimators.chains.base import by_position
from lmbm_torch.estimators.common.base import TrainedEstimator
from lmbm_torch.estimators.common.kernels import Kernel, check_gram, relative_penalty
from lmbm_torch.fitting.recipe import are_steep, have_like_units, merged
from lmbm_torch.memory import part_bytes
from lmbm_torch.solvers.chains import free_bias, multi_class, smo
from lmbm_torch.solvers.chains.kernel_problem import ChainKernelProblem
from lmbm_torch.solvers.chains.linear import ChainMargins
from lmbm_torch.solvers.chains.problems import chain_problem
from lmbm_torch.solvers.networks.problems import Features
from lmbm_torch.solvers.structural import frank_wolfe, smoothing

# With a linear kernel, dual steps are used if all kernel values take at most this memory, in bytes.
_GRAM_BYTES = 2**26
# Smoothed hinges are faster than Frank–Wolfe if length · positions / number of weights is larger: Frank–Wolfe
# needs more passes for longer chains (measured for lengths from 1 to 700).
_MANY = 15
# Replaces the limit _MANY if columns have different units or C is large, because dual steps then gain little.
_ENOUGH = 2


def train_max_margin(
    estimator: TrainedEstimator,
    X: Any,
    codes: np.ndarray,
    start: np.ndarray,
    *,
    free_intercept: bool = False,
    **options: Any,
) -> np.ndarray:
    """Train an estimator's scores, and return the transitions (classes, classes) from row to column.

    Training minimises ½‖w‖² + C Σ max_y [Hamming(y_l, y) + score(x_l, y) − score(x_l, y_l)]. With the linear
    kernel the solver is L-BFGS on smoothed hinges for long chains, for many positions per weight, and for
    columns in unlike units or a large C; otherwise block-coordinate Frank–Wolfe on the weights. With other
    kernels the solver is SMO on the factored dual; the intercept is a constant 1 added to the kernel. Chains
    of a single position are solved in all classes at once, with the linear kernel only for few positions.

    Args:
        X: (rows, features), the positions of all chains.
        codes: (rows,), the class index of each position.
        start: (chains + 1,), the first row of each chain, and the number of rows.
        free_intercept: whether intercepts are not penalised; only for chains of a single position, and needs
            the kernel values of all pairs.
        options: further arguments of the training problems, such as weights of the chains.
    """
    by_row = by_position(options.get("sample_weight"), start)
    options["num_states"] = len(estimator.classes_)
    solve = _free_duals if free_intercept else _duals_of_values
    if estimator.kernel == "linear":
        X = estimator._scaled(X, by_row)
        coef, constant, transition, state = _weights_of_features(estimator, X, codes, start, options, solve)
        estimator.coef_, estimator.intercept_ = estimator._of_features(coef, constant)
    else:
        kernel, X = Kernel.of(estimator, X, by_row, estimator.device), X.astype(np.float64, copy=False)
        estimator.kernel_ = kernel
        estimator.feature_shift_, estimator.feature_scale_ = kernel.shift, kernel.scale
        estimator.C_ = relative_penalty(estimator.C, kernel, X, by_row)
        if not kernel.is_precomputed:
            check_gram(len(codes))
        coef, constant, transition, state = solve(estimator, kernel.matrix(X), codes, start, options)
        estimator.dual_coef_, estimator.intercept_ = coef, constant
        estimator.X_fit_ = None if kernel.is_precomputed else X
    estimator._report(state)
    return transition.reshape(options["num_states"], -1).copy()


def _weights_of_features(
    estimator: TrainedEstimator,
    X: Any,
    codes: np.ndarray,
    start: np.ndarray,
    options: dict[str, Any],
    solve: Callable[..., tuple[np.ndarray, np.ndarray, np.ndarray, Any]],
) -> tuple[np.ndarray, np.ndarray, np.ndarray, Any]:
    """Train with a linear kernel; return weights (classes, features), intercepts, transitions, last state.

    Args:
        solve: function for training in the dual: :func:`_duals_of_values` or :func:`_free_duals`.
    """
    X, back = merged(X)
    C = estimator.C_
    has_single_positions = len(start) == len(codes) + 1
    has_values = (
        has_single_positions and "allowed" not in options and 8 * len(codes) ** 2 <= part_bytes(_GRAM_BYTES)
    )
    suits_smoothing = _suits_smoothing(X, start, options["num_states"], C)
    is_free = solve is _free_duals
    if is_free:
        check_gram(len(codes))
    if is_free or (has_values and not suits_smoothing):
        X = X.astype(np.float64, copy=False)
        gram: Any = X @ X.T
        gram = gram.toarray() if sparse.issparse(gram) else gram
        duals, constant, transition, state = solve(estimator, gram, codes, start, options)
        return (X.T @ duals.T).T @ back, constant, transition, state
    if suits_smoothing:
        state = estimator._run(smoothing, ChainMargins(X, codes, start, C=C, **options))
    else:
        problem = chain_problem(X, codes, start, C=C, **options)
        state = estimator._run(frank_wolfe, problem, seed=estimator._seed())
    features, transition = state.weights
    return features[:, :-1] @ back, features[:, -1], transition, state


def _duals_of_values(
    estimator: TrainedEstimator,
    gram: np.ndarray,
    codes: np.ndarray,
    start: np.ndarray,
    options: dict[str, Any],
) -> tuple[np.ndarray, np.ndarray, np.ndarray, Any]:
    """Solve the dual for kernel values ``gram`` (rows, rows), which are changed in place."""
    gram += 1.0
    problem = ChainKernelProblem(gram, codes, start, C=estimator.C_, **options)
    solver = multi_class if problem.has_single_positions and problem.allowed is None else smo
    state = estimator._run(solver, problem, seed=estimator._seed())
    duals = problem.coef(state.nodes).T
    return duals, duals.sum(1), state.transition, state


def _free_duals(
    estimator: TrainedEstimator,
    gram: np.ndarray,
    codes: np.ndarray,
    start: np.ndarray,
    options: dict[str, Any],
) -> tuple[np.ndarray, np.ndarray, np.ndarray, Any]:
    """Solve the dual as :func:`_duals_of_values` does, but with intercepts that are not penalised."""
    # Centre the kernel values: as duals of a class sum to 0, the solution stays the same, at better scale.
    means = gram.mean(0)
    gram += means.mean() - means - means[:, None]
    problem = ChainKernelProblem(gram, codes, start, C=estimator.C_, **options)
    state = estimator._run(free_bias, problem, seed=estimator._seed())
    duals = problem.coef(state.nodes).T
    return duals, state.bias - duals @ means, state.transition, state


def row_scores(estimator: TrainedEstimator, X: Features) -> np.ndarray:
    """Compute the scores (rows, classes) of positions by a fitted estimator, without transitions."""
    if estimator.kernel == "linear":
        return X @ estimator.coef_.T + estimator.intercept_
    return estimator.kernel_.expand(X, estimator.X_fit_, estimator.dual_coef_) + estimator.intercept_


def _suits_smoothing(X: Features, start: np.ndarray, num_states: int, C: float) -> bool:
    """Return whether L-BFGS on smoothed hinges is likely faster than passes over the duals.

    Chains enter the decision by squared length, because long chains determine the time.
    """
    rows: Any = X
    weights = num_states * (rows.shape[1] + 1 + num_states)
    many = np.square(np.diff(start)).sum() / weights
    return bool(many >= _MANY or (many >= _ENOUGH and (are_steep(X, C) or not have_like_units(rows))))
