"""Exponentiated gradient on label problems: it certifies, climbs, and finds what coordinate descent finds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from scipy import sparse
from strategies.label_problems import label_problems, optima, random_inputs, random_problems

from lmbm_torch.kernels.dual import network
from lmbm_torch.solvers.base import run
from lmbm_torch.solvers.networks import dual_coordinate, exponentiated_gradient
from lmbm_torch.solvers.networks.problems import LabelProblems, NetworkState, certified


@given(problems=label_problems())
def test_the_optimum_is_that_of_coordinate_descent(problems):
    state = run(exponentiated_gradient, problems, tol=1e-4, max_iter=3000)
    assert (state.gaps <= 1e-4).all()
    best = run(dual_coordinate, problems, tol=1e-8)
    slack = 1e-7 * best.primal
    assert (state.dual <= best.primal + slack).all()
    assert (best.dual <= state.primal + slack).all()
    np.testing.assert_allclose(state.weights, problems.weights(state.dual_coef), atol=1e-9)
    # Feasible duals are all that another solver takes.
    np.testing.assert_allclose(dual_coordinate.init(problems, state.dual_coef).dual, state.dual, rtol=1e-9)


def test_the_optimum_is_that_of_a_convex_solver():
    problems = random_problems(5, instances=30, C=0.5, num_cliques=2, weighted=True)
    state = run(exponentiated_gradient, problems, tol=1e-6, max_iter=3000)
    np.testing.assert_allclose(state.primal, optima(problems), rtol=2e-6)


@given(problems=label_problems())
@settings(max_examples=10)
def test_the_dual_climbs_with_every_round(problems):
    state = exponentiated_gradient.init(problems)
    for _ in range(4):
        after = exponentiated_gradient.update(problems, state, tol=1e-12)
        assert (after.dual >= state.dual - 1e-9 * after.primal).all()
        state = after


@given(problems=label_problems(missing=(0.0, 0.3)))
@settings(max_examples=10)
def test_sweeps_climb_within_the_box_to_the_optimum_of_coordinate_descent(problems):
    start = exponentiated_gradient.init(problems)
    weights, duals = start.weights.copy(), start.dual_coef.copy()
    network.gradient_sweeps(problems, np.arange(problems.num_labels), weights, duals, 400, 0)
    np.testing.assert_allclose(weights, problems.weights(duals), atol=1e-8)
    assert (duals >= 0).all()
    assert (duals <= problems.upper * (problems.spins != 0)).all()
    best = dual_coordinate.update(problems, dual_coordinate.init(problems), tol=1e-8, num_iters=1000)
    np.testing.assert_allclose(certified(problems, duals, 1).dual, best.dual, rtol=0.02, atol=1e-9)


def test_csr_is_as_dense():
    features, labels = random_inputs(2, 50, 5, 3)
    one, two = (
        run(exponentiated_gradient, LabelProblems.from_labels(rows, labels), tol=1e-3)
        for rows in (features, sparse.csr_array(features))
    )
    np.testing.assert_allclose(one.dual_coef, two.dual_coef, atol=1e-9)


def test_labels_that_are_missing_are_learned_in_stages():
    problems = random_problems(7, instances=40, missing=0.2)
    state = run(exponentiated_gradient, problems, tol=1e-5, max_iter=3000)
    other = run(dual_coordinate, problems, tol=1e-5)
    np.testing.assert_allclose(state.primal, other.primal, rtol=3e-5)
    assert (state.dual_coef[problems.spins == 0] == 0).all()


def test_same_seed_same_result_and_a_stored_state_goes_on():
    problems = random_problems(3, instances=40)
    whole = run(exponentiated_gradient, problems, tol=1e-12, max_iter=6, seed=5)
    part = run(exponentiated_gradient, problems, tol=1e-12, max_iter=4, seed=5)
    for _ in range(2):
        part = exponentiated_gradient.update(problems, part, tol=1e-12, seed=5)
    np.testing.assert_array_equal(part.dual_coef, whole.dual_coef)
    other = run(exponentiated_gradient, problems, tol=1e-12, max_iter=6, seed=6)
    assert not np.array_equal(other.dual_coef, whole.dual_coef)
    seen: list[NetworkState] = []
    run(exponentiated_gradient, problems, tol=1e-12, max_iter=12, seed=5, callback=seen.append)
    assert [each.num_iters for each in seen] == [5, 10, 12]


def test_it_goes_on_from_other_duals():
    problems = random_problems(4, instances=40)
    near = run(dual_coordinate, problems, tol=1e-3).dual_coef
    state = run(
        exponentiated_gradient,
        problems,
        tol=1e-6,
        max_iter=3000,
        start=exponentiated_gradient.init(problems, near),
    )
    assert state.gap <= 1e-6


def test_bad_input_is_refused_by_name():
    problems = random_problems(0)
    with pytest.raises(ValueError, match="tol: expected a finite number above 0"):
        run(exponentiated_gradient, problems, tol=0.0)
    with pytest.raises(ValueError, match="max_iter: expected an integer of at least 1"):
        run(exponentiated_gradient, problems, max_iter=0)
    with pytest.raises(ValueError, match="dual_coef: expected 0 to C"):
        exponentiated_gradient.init(problems, np.full(problems.spins.shape, 2.0))
    with pytest.raises(ValueError, match="positions"):
        exponentiated_gradient.update(problems, exponentiated_gradient.init(problems), positions=[9])
    fewer = replace(exponentiated_gradient.init(problems), dual_coef=np.zeros((1, 1)))
    with pytest.raises(ValueError, match="dual_coef: expected shape"):
        exponentiated_gradient.update(problems, fewer)
