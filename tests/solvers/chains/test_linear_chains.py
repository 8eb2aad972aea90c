"""The estimated Hessian of linear chains, and what L-BFGS makes of it whatever columns are like."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from lmbm_torch.solvers.base import run
from lmbm_torch.solvers.chains.linear import ChainMargins, LikelihoodProblem
from lmbm_torch.solvers.structural import lbfgs, linear, smoothing
from lmbm_torch.solvers.structural.linear import ColumnCurvature, GramCurvature

UNITS = {
    "as drawn": lambda rows: rows,
    "three decades": lambda rows: rows * np.logspace(-1.5, 1.5, rows.shape[1]),
    "far from zero": lambda rows: rows + 100,
    "alike": lambda rows: rows @ np.diag([1.0, 1.0, 1e-3, 1e-3]) + rows[:, :1],
    "one of them": lambda rows: np.column_stack([1e4 * rows[:, :1], rows[:, 1:]]),
    "a constant": lambda rows: np.column_stack([rows, np.full(len(rows), 1e3)]),
    "a column of zeros": lambda rows: np.column_stack([rows, np.zeros(len(rows))]),
}


def chains(lengths, seed=0, states=3, width=4):
    random = np.random.default_rng(seed)
    start = np.concatenate([[0], np.cumsum(lengths)])
    labels = random.integers(0, states, start[-1])
    rows = random.normal(size=(states, width))[labels] + random.normal(size=(start[-1], width))
    return rows, labels, start, states


def test_the_step_of_a_curvature_is_that_of_its_matrix():
    random = np.random.default_rng(0)
    diagonal, direction = 1 + random.random((4, 3)), random.normal(size=(4, 3))
    transitions, gradient = 1 + random.random((3, 3)), random.normal(size=21)
    step = ColumnCurvature(diagonal, direction, transitions.ravel()).solve(gradient)
    for state in range(3):
        matrix = np.diag(diagonal[:, state]) + np.outer(direction[:, state], direction[:, state])
        np.testing.assert_allclose(
            matrix @ step[:12].reshape(4, 3)[:, state], gradient[:12].reshape(4, 3)[:, state]
        )
    np.testing.assert_allclose(transitions.ravel() * step[12:], gradient[12:])


@pytest.fixture(params=["every pair of columns", "each column"])
def of_columns(request, monkeypatch):
    """The name of the estimate that is made."""
    monkeypatch.setattr(linear, "COLUMNS_AN_OUTPUT", 16 if request.param == "every pair of columns" else 0)
    # So that dense rows are multiplied in several parts.
    monkeypatch.setattr(linear, "ROWS_AT_ONCE", 7)
    return request.param


def single_positions(is_sparse, dtype):
    random = np.random.default_rng(1)
    rows, labels, start, states = chains([1] * 20)
    rows = rows.astype(dtype)
    weight = np.where(np.arange(20) % 5 == 0, 0.0, random.random(20) + 0.5)
    features = sparse.csr_array(rows) if is_sparse else rows
    problem = LikelihoodProblem(features, labels, start, states, C=2.0, sample_weight=weight)
    return problem, random.normal(size=problem.num_weights)


@pytest.mark.parametrize("is_sparse", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_of_single_positions_all_pairs_of_columns_are_those_of_the_hessian(is_sparse, dtype):
    problem, flat = single_positions(is_sparse, dtype)
    found = problem.curvature_at(flat)
    assert isinstance(found, GramCurvature)
    # What the outputs have in common: their mean.
    mean = found.vectors @ (found.diagonal.mean(1)[:, None] * found.vectors.T)
    hessians = np.zeros((5, 5))
    for state in range(3):
        for column in range(5):
            step = 1e-5 * (np.arange(problem.num_weights) == 3 * column + state)
            slopes = [problem.value_and_gradient(flat + sign * step)[1] for sign in (1, -1)]
            change = (slopes[0] - slopes[1])[:15].reshape(5, 3)[:, state] / 2e-5
            hessians[column] += change / 3
    np.testing.assert_allclose(mean, hessians, rtol=1e-4, atol=1e-4)
    gradient = np.random.default_rng(2).normal(size=problem.num_weights)
    step = found.solve(gradient)
    for state in range(3):
        matrix = found.vectors @ (found.diagonal[:, state, None] * found.vectors.T)
        np.testing.assert_allclose(
            matrix @ step[:15].reshape(5, 3)[:, state], gradient[:15].reshape(5, 3)[:, state]
        )
    np.testing.assert_allclose(found.couplings * step[15:], gradient[15:])


@pytest.mark.parametrize("is_sparse", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_of_single_positions_the_diagonal_is_that_of_the_hessian(is_sparse, dtype, monkeypatch):
    monkeypatch.setattr(linear, "COLUMNS_AN_OUTPUT", 0)
    monkeypatch.setattr(linear, "ROWS_AT_ONCE", 7)
    problem, flat = single_positions(is_sparse, dtype)
    found = problem.curvature_at(flat)
    assert isinstance(found, ColumnCurvature)
    diagonal = np.concatenate([(found.diagonal + found.direction**2).ravel(), found.couplings])
    for place in range(problem.num_weights):
        step = 1e-5 * (np.arange(problem.num_weights) == place)
        slopes = [problem.value_and_gradient(flat + sign * step)[1][place] for sign in (1, -1)]
        assert diagonal[place] == pytest.approx((slopes[0] - slopes[1]) / 2e-5, rel=1e-5)


@pytest.mark.parametrize("units", UNITS)
@pytest.mark.parametrize("lengths", [(1,) * 600, (6,) * 100, (300, 290, 10)])
def test_a_likelihood_takes_tens_of_iterations_whatever_the_columns_units(units, lengths, of_columns):
    rows, *rest = chains(lengths)
    state = run(lbfgs, LikelihoodProblem(UNITS[units](rows), *rest, C=1.0), tol=1e-3, max_iter=60)
    assert state.gap <= 1e-3


@pytest.mark.parametrize("units", UNITS)
@pytest.mark.parametrize("lengths", [(1,) * 600, (6,) * 100, (300, 290, 10)])
def test_hinges_take_some_hundreds_at_most_whatever_the_columns_units(units, lengths, of_columns):
    rows, *rest = chains(lengths)
    state = run(smoothing, ChainMargins(UNITS[units](rows), *rest, C=1.0), tol=1e-3, max_iter=500)
    assert state.gap <= 1e-3


def test_chains_without_weight_bend_nothing(of_columns):
    problem = LikelihoodProblem(*chains([3, 4]), sample_weight=np.zeros(2))
    gradient = np.arange(float(problem.num_weights))
    step = problem.curvature_at(np.ones(problem.num_weights)).solve(gradient)
    np.testing.assert_allclose(step, gradient, atol=1e-12)
    assert run(lbfgs, problem, tol=1e-3).objective == 0.0


@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning", "ignore:invalid:RuntimeWarning")
def test_features_whose_inner_products_overflow_are_refused(of_columns):
    rows, *rest = chains([3, 4])
    with pytest.raises(ValueError, match="features: inner products"):
        lbfgs.init(LikelihoodProblem(1e200 * rows, *rest))
