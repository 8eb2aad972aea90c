"""The estimated Hessian of linear chains, and what L-BFGS makes of it whatever columns are like."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from lmbm_torch.solvers.base import run
from lmbm_torch.solvers.chains.likelihood import LikelihoodProblem
from lmbm_torch.solvers.chains.margins import ChainMargins
from lmbm_torch.solvers.structural import lbfgs, linear, smoothing
from lmbm_torch.solvers.structural.linear import Curvature

UNITS = {
    "as drawn": lambda rows: rows,
    "three decades": lambda rows: rows * np.logspace(-1.5, 1.5, rows.shape[1]),
    "far from zero": lambda rows: rows + 100,
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
    step = Curvature(diagonal, direction, transitions.ravel()).solve(gradient)
    for state in range(3):
        matrix = np.diag(diagonal[:, state]) + np.outer(direction[:, state], direction[:, state])
        np.testing.assert_allclose(
            matrix @ step[:12].reshape(4, 3)[:, state], gradient[:12].reshape(4, 3)[:, state]
        )
    np.testing.assert_allclose(transitions.ravel() * step[12:], gradient[12:])


@pytest.mark.parametrize("is_sparse", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_of_single_positions_the_diagonal_is_that_of_the_hessian(is_sparse, dtype, monkeypatch):
    # So that dense rows are squared in several parts.
    monkeypatch.setattr(linear, "ROWS_AT_ONCE", 7)
    random = np.random.default_rng(1)
    rows, labels, start, states = chains([1] * 20)
    rows = rows.astype(dtype)
    weight = np.where(np.arange(20) % 5 == 0, 0.0, random.random(20) + 0.5)
    features = sparse.csr_array(rows) if is_sparse else rows
    problem = LikelihoodProblem(features, labels, start, states, C=2.0, sample_weight=weight)
    flat = random.normal(size=problem.num_weights)
    found = problem.curvature_at(flat)
    diagonal = np.concatenate([(found.diagonal + found.direction**2).ravel(), found.couplings])
    for place in range(problem.num_weights):
        step = 1e-5 * (np.arange(problem.num_weights) == place)
        slopes = [problem.value_and_gradient(flat + sign * step)[1][place] for sign in (1, -1)]
        assert diagonal[place] == pytest.approx((slopes[0] - slopes[1]) / 2e-5, rel=1e-5)


@pytest.mark.parametrize("units", UNITS)
@pytest.mark.parametrize("lengths", [(1,) * 600, (6,) * 100, (300, 290, 10)])
def test_a_likelihood_takes_tens_of_iterations_whatever_the_columns_units(units, lengths):
    rows, *rest = chains(lengths)
    state = run(lbfgs, LikelihoodProblem(UNITS[units](rows), *rest, C=1.0), tol=1e-3, max_iter=60)
    assert state.gap <= 1e-3


@pytest.mark.parametrize("units", UNITS)
@pytest.mark.parametrize("lengths", [(1,) * 600, (6,) * 100, (300, 290, 10)])
def test_hinges_take_some_hundreds_at_most_whatever_the_columns_units(units, lengths):
    rows, *rest = chains(lengths)
    state = run(smoothing, ChainMargins(UNITS[units](rows), *rest, C=1.0), tol=1e-3, max_iter=500)
    assert state.gap <= 1e-3


def test_chains_without_weight_bend_nothing():
    problem = LikelihoodProblem(*chains([3, 4]), sample_weight=np.zeros(2))
    found = problem.curvature_at(np.ones(problem.num_weights))
    np.testing.assert_array_equal(found.diagonal, 1.0)
    np.testing.assert_array_equal(found.direction, 0.0)
    np.testing.assert_array_equal(found.couplings, 1.0)
    assert run(lbfgs, problem, tol=1e-3).objective == 0.0
