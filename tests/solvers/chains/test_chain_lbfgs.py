"""Conditional random fields by L-BFGS, against their definition."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from scipy import sparse

from lmbm_torch.solvers.base import run
from lmbm_torch.solvers.chains import linear
from lmbm_torch.solvers.chains.linear import LikelihoodProblem
from lmbm_torch.solvers.structural import lbfgs


def small_problem(seed, **settings):
    random = np.random.default_rng(seed)
    start = np.concatenate([[0], random.integers(1, 5, 6).cumsum()])
    features = random.normal(size=(start[-1], 3))
    labels = random.integers(0, 3, start[-1])
    return LikelihoodProblem(features, labels, start, 3, **{"C": 0.7, **settings})


def enumerated(problem, flat):
    """The objective by its definition."""
    weights = flat.reshape(-1, problem.num_states)
    scores = problem.features @ weights[:3] + weights[3]
    total = 0.5 * flat @ flat
    for upper, first, last in zip(problem.upper, problem.start[:-1], problem.start[1:], strict=True):
        paths = np.array(list(product(range(3), repeat=last - first)))
        steps = weights[4:][paths[:, :-1], paths[:, 1:]].sum(1)
        every = scores[first:last][np.arange(last - first), paths].sum(1) + steps
        truth = every[(paths == problem.labels[first:last]).all(1)]
        total += upper * float(np.logaddexp.reduce(every) - truth[0])
    return total


@pytest.mark.parametrize("seed", range(3))
def test_objective_and_gradient_are_those_of_the_definition(seed, monkeypatch):
    # So that chains of several lengths share a block, and several blocks are needed.
    monkeypatch.setattr(linear, "BLOCKS", 3)
    random = np.random.default_rng(seed)
    problem = small_problem(seed, sample_weight=random.random(6))
    flat = random.normal(size=problem.num_weights)
    value, gradient = problem.value_and_gradient(flat)
    assert value == pytest.approx(enumerated(problem, flat), rel=1e-12)
    for place in random.choice(problem.num_weights, 6, replace=False):
        step = 1e-5 * (np.arange(problem.num_weights) == place)
        slope = (enumerated(problem, flat + step) - enumerated(problem, flat - step)) / 2e-5
        assert gradient[place] == pytest.approx(slope, rel=1e-5, abs=1e-7)


def test_the_excess_bounds_what_is_above_the_optimum():
    problem = small_problem(4)
    states = []
    best = run(lbfgs, problem, tol=1e-7, callback=states.append)
    assert best.gap <= 1e-7
    assert best.relative_excess <= 1e-12
    assert [state.num_iters for state in states] == list(range(1, best.num_iters + 1))
    for state in states:
        assert state.objective - state.excess <= best.objective * (1 + 1e-12)
    assert states[0].objective > best.objective


def test_sparse_rows_and_weights_of_chains_count_as_what_they_stand_for():
    problem = small_problem(5)
    dense = run(lbfgs, problem, tol=1e-6)
    rows = sparse.csr_array(problem.features)
    other = LikelihoodProblem(rows, problem.labels, problem.start, 3, C=0.35, sample_weight=np.full(6, 2.0))
    state = run(lbfgs, other, tol=1e-6)
    np.testing.assert_allclose(state.weights.features, dense.weights.features, atol=1e-4)
    np.testing.assert_allclose(state.weights.couplings, dense.weights.couplings, atol=1e-4)


def test_a_search_that_fails_is_made_again_without_corrections():
    problem = small_problem(6)
    state = run(lbfgs, problem, max_iter=2, tol=1e-12)
    # Their inverse Hessian, which is not positive, makes the direction one uphill.
    uphill = replace(state, corrections=((state.gradient, -state.gradient),))
    after = lbfgs.update(problem, uphill)
    assert after.objective < state.objective
    assert len(after.corrections) == 1
    step, steepest = after.flat - state.flat, state.curvature.solve(-state.gradient)
    np.testing.assert_allclose(step / np.linalg.norm(step), steepest / np.linalg.norm(steepest), atol=1e-9)


def test_a_run_ends_where_no_search_succeeds(monkeypatch):
    problem, searches = small_problem(6), []
    state = run(lbfgs, problem, max_iter=2, tol=1e-12)
    monkeypatch.setattr(lbfgs, "_line_search", lambda *arguments: searches.append(arguments))
    assert run(lbfgs, problem, start=state, tol=1e-12) is state
    assert len(searches) == 2


def test_refusals():
    problem = small_problem(0)
    for name, settings in (("C", {"C": 0.0}), ("sample_weight", {"sample_weight": np.ones(2)})):
        with pytest.raises(ValueError, match=name):
            small_problem(0, **settings)
    with pytest.raises(ValueError, match="start"):
        LikelihoodProblem(problem.features, problem.labels, problem.start[:-1], 3)
    with pytest.raises(ValueError, match="labels"):
        LikelihoodProblem(problem.features, problem.labels, problem.start, 2)
    with pytest.raises(ValueError, match="tol"):
        run(lbfgs, problem, tol=0.0)
    with pytest.raises(ValueError, match="max_iter"):
        run(lbfgs, problem, max_iter=0)


@pytest.mark.parametrize("C", [1.0, 100.0, 1e4])
def test_steep_losses_are_followed_to_the_optimum(C):
    # The first step leaves a thousandth of the gradient and ten times the least objective.
    random = np.random.default_rng(0)
    weights, features = random.normal(size=(4, 400)), random.normal(size=(60, 400))
    labels = (features @ weights.T).argmax(1)
    problem = LikelihoodProblem(features, labels, np.arange(61), 4, C=C)
    found, optimum = run(lbfgs, problem), run(lbfgs, problem, tol=1e-9)
    assert found.gap <= 1e-3
    assert found.objective <= 1.005 * optimum.objective
    assert found.relative_excess <= 1


def test_steps_too_short_for_numbers_end_the_training():
    random = np.random.default_rng(0)
    features = random.normal(size=(50, 3)) * 1e-170
    problem = LikelihoodProblem(features, np.arange(50) % 3, np.arange(0, 51, 5), 3, C=1e-300)
    state = run(lbfgs, problem, tol=1e-300)
    assert np.isfinite(state.flat).all()
    assert state.num_iters < 100
