"""Pegasos: feasible duals, a gap that is true, and the way to the optimum."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse
from strategies.label_problems import label_problems, random_inputs, random_problems

from lmbm_torch.solvers.base import run
from lmbm_torch.solvers.networks import dual_coordinate, pegasos
from lmbm_torch.solvers.networks.problems import LabelProblems, NetworkState


@given(problems=label_problems(), passes=st.integers(1, 4))
def test_duals_are_feasible_and_certify_the_weights(problems, passes):
    state = pegasos.init(problems)
    for _ in range(passes):
        state = pegasos.update(problems, state)
    np.testing.assert_allclose(state.weights, problems.weights(state.dual_coef), atol=1e-9)
    optimum = run(dual_coordinate, problems, tol=1e-8)
    slack = 1e-7 * optimum.primal
    assert (state.dual <= optimum.primal + slack).all()
    assert (optimum.dual <= state.primal + slack).all()
    # The dual solver takes no duals outside their box.
    np.testing.assert_allclose(dual_coordinate.init(problems, state.dual_coef).dual, state.dual, rtol=1e-9)


def test_means_of_duals_are_not_rounded_out_of_their_box():
    problems = LabelProblems.from_labels(np.eye(2), np.eye(2), C=0.1)
    state = pegasos.init(problems)
    for _ in range(10):
        state = pegasos.update(problems, state)
        assert state.dual_coef.max() <= 0.1


def test_gap_falls_towards_the_optimum():
    problems = random_problems(1, instances=60, C=0.05, weighted=True)
    state = run(pegasos, problems, tol=1e-2)
    assert state.gap <= 1e-2
    best = run(dual_coordinate, problems, tol=1e-8).primal.sum()
    assert best * (1 - 1e-7) <= state.primal.sum() <= best * 1.01
    early = run(pegasos, problems, tol=1e-9, max_iter=5)
    late = run(pegasos, problems, tol=1e-9, max_iter=100)
    assert (early.num_iters, late.num_iters) == (5, 100)
    assert late.gap < early.gap / 5


def test_csr_is_as_dense():
    features, labels = random_inputs(2, 50, 5, 3)
    one, two = (
        run(pegasos, LabelProblems.from_labels(rows, labels), tol=1e-9, max_iter=6)
        for rows in (features, sparse.csr_array(features))
    )
    np.testing.assert_allclose(one.weights, two.weights, atol=1e-12)
    np.testing.assert_array_equal(one.dual_coef, two.dual_coef)


def test_same_seed_same_result_and_a_stored_state_goes_on():
    problems = random_problems(3, instances=40)
    whole = run(pegasos, problems, tol=1e-9, max_iter=7, seed=5)
    part = run(pegasos, problems, tol=1e-9, max_iter=4, seed=5)
    for _ in range(3):
        part = pegasos.update(problems, part, seed=5)
    np.testing.assert_array_equal(part.dual_coef, whole.dual_coef)
    np.testing.assert_array_equal(part.weights, whole.weights)
    other = run(pegasos, problems, tol=1e-9, max_iter=7, seed=6)
    assert not np.array_equal(other.dual_coef, whole.dual_coef)


def test_callback_is_called_after_every_pass():
    seen: list[NetworkState] = []
    state = run(pegasos, random_problems(3), tol=1e-9, max_iter=4, callback=seen.append)
    assert [visited.num_iters for visited in seen] == [1, 2, 3, 4]
    assert seen[-1] is state


def test_bad_input_is_refused_by_name():
    problems = random_problems(0)
    with pytest.raises(ValueError, match="tol: expected a finite number above 0"):
        run(pegasos, problems, tol=0.0)
    with pytest.raises(ValueError, match="max_iter: expected an integer of at least 1"):
        run(pegasos, problems, max_iter=0)
    spins = problems.spins.copy()
    spins[1, 3] = 0
    with pytest.raises(ValueError, match="problems: expected no missing labels, got 1"):
        run(pegasos, replace(problems, spins=spins))
