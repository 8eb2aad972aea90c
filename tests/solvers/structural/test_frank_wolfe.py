"""Block-coordinate Frank–Wolfe against a convex solver's optimum over every labelling, and its promises."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from references import cutting_plane
from strategies.structural import label_problems, random_label_problem, random_words

from lmbm_torch.inference.relaxations import integer_program, lp_relaxation
from lmbm_torch.references.structural import enumerated_planes, structural_primal
from lmbm_torch.solvers.base import run
from lmbm_torch.solvers.structural import frank_wolfe
from lmbm_torch.solvers.structural.label_vectors import viterbi
from lmbm_torch.solvers.structural.problems import StructuralWeights


@settings(max_examples=20)
@given(problem=label_problems(), batch_size=st.sampled_from((None, 5)))
def test_reaches_the_optimum_over_every_labelling(problem, batch_size):
    reference = structural_primal(problem, enumerated_planes(problem.oracle))
    state = run(frank_wolfe, problem, tol=1e-7, max_iter=2000, batch_size=batch_size)
    assert state.gap <= 1e-7
    assert state.primal == pytest.approx(reference.primal, rel=1e-5, abs=1e-8)
    assert state.dual <= reference.primal + 1e-7 * (1 + reference.primal)


@pytest.mark.parametrize("csr", [False, True])
def test_words_of_several_rows_reach_their_optimum(csr):
    for seed in range(5):
        problem, planes = random_words(seed, csr=csr)
        reference = structural_primal(problem, planes)
        state = run(frank_wolfe, problem, tol=1e-7, max_iter=2000)
        assert state.primal == pytest.approx(reference.primal, rel=1e-5)
        batched = run(frank_wolfe, problem, tol=1e-7, max_iter=2000, batch_size=2)
        assert batched.primal == pytest.approx(reference.primal, rel=1e-5)


def test_beyond_the_limit_of_memory_only_planes_with_duals_and_new_ones_stay(monkeypatch):
    problem = random_label_problem(0, instances=20, num_labels=5)
    free = run(frank_wolfe, problem, tol=1e-6, max_iter=2000)
    monkeypatch.setattr(frank_wolfe, "MOST_PLANE_BYTES", 0)
    state = frank_wolfe.init(problem)
    while state.gap > 1e-6:
        state = frank_wolfe.update(problem, state)
        # The truths, and planes of the last decoding.
        has_truth = np.flatnonzero(np.diff(state.planes.start) == 0)
        without = np.setdiff1d(np.flatnonzero(state.dual_coef == 0), has_truth)
        assert (state.idle[without] == 0).all()
        assert (np.bincount(state.planes.example[without]) <= 1).all()
    assert state.primal == pytest.approx(free.primal, rel=1e-5)


@given(problem=label_problems())
@settings(max_examples=10)
def test_cutting_plane_agrees(problem):
    reference = run(cutting_plane, problem, tol=1e-7)
    assert reference.gap <= 1e-7
    assert run(frank_wolfe, problem, tol=1e-7, max_iter=2000).primal == pytest.approx(
        reference.primal, rel=1e-5, abs=1e-8
    )


@given(problem=label_problems(), batch_size=st.sampled_from((None, 2)))
@settings(max_examples=10)
def test_every_state_is_feasible_and_bounds_the_optimum(problem, batch_size):
    state = frank_wolfe.init(problem)
    best = run(frank_wolfe, problem, tol=1e-8, max_iter=2000).primal
    duals = []
    for _ in range(6):
        state = frank_wolfe.update(problem, state, batch_size=batch_size)
        sums = np.bincount(state.planes.example, state.dual_coef, problem.num_examples)
        np.testing.assert_allclose(sums, problem.upper, rtol=1e-12)
        assert state.dual_coef.min() >= 0
        made = problem.weights(state.planes, state.dual_coef)
        np.testing.assert_array_equal(made.features, state.weights.features)
        np.testing.assert_array_equal(made.couplings, state.weights.couplings)
        assert state.dual <= best * (1 + 1e-7) + 1e-9
        assert state.primal >= best * (1 - 1e-7)
        assert state.primal == problem.primal(state.weights, problem.maximisers(state.weights).bound)
        duals.append(state.dual)
    assert (np.diff(duals) >= -1e-9 * (1 + np.abs(duals[1:]))).all()


def test_runs_are_those_of_their_seed_and_take_up_where_they_were_put_down():
    problem = random_label_problem(3, instances=40, C=10.0)
    states = []
    whole = run(frank_wolfe, problem, tol=1e-12, max_iter=6, batch_size=7, seed=5, callback=states.append)
    assert [state.num_iters for state in states] == [1, 2, 3, 4, 5, 6]
    state = states[2]
    for _ in range(3):
        state = frank_wolfe.update(problem, state, batch_size=7, seed=5)
    np.testing.assert_array_equal(state.dual_coef, whole.dual_coef)
    other = run(frank_wolfe, problem, tol=1e-12, max_iter=6, batch_size=7, seed=6)
    assert not np.array_equal(other.weights.features, whole.weights.features)


def test_duplicates_of_an_instance_are_its_weight():
    problem = random_label_problem(4, instances=10, C=0.03)
    weights = run(frank_wolfe, problem, tol=1e-10, max_iter=2000).weights
    doubled = replace(problem, upper=2 * problem.upper)
    features = np.repeat(problem.features, 2, 0)
    oracle = replace(problem.oracle, labels=np.repeat(problem.oracle.labels, 2, 0))
    twice = type(problem).from_rows(features, oracle, num_outputs=3, num_couplings=3, C=0.03)
    ours = run(frank_wolfe, doubled, tol=1e-10, max_iter=2000).weights
    theirs = run(frank_wolfe, twice, tol=1e-10, max_iter=2000).weights
    np.testing.assert_allclose(ours.features, theirs.features, atol=1e-4)
    assert np.abs(ours.features - weights.features).max() > 1e-3


def test_integer_programmes_find_what_enumeration_finds():
    exact = run(frank_wolfe, random_label_problem(6), tol=1e-6, max_iter=500)
    state = run(frank_wolfe, random_label_problem(6, decoder=integer_program.decode), tol=1e-5)
    assert state.primal == pytest.approx(exact.primal, rel=2e-5)


def test_dynamic_programmes_find_what_enumeration_finds():
    exact = run(frank_wolfe, random_label_problem(7, chain=True, num_labels=5), tol=1e-6, max_iter=500)
    state = run(
        frank_wolfe,
        random_label_problem(7, chain=True, num_labels=5, decoder=viterbi),
        tol=1e-6,
        max_iter=500,
    )
    assert state.primal == pytest.approx(exact.primal, rel=2e-6)


def test_linear_programmes_solve_an_outer_relaxation():
    settings = {"instances": 15, "num_labels": 4, "C": 30.0}
    for seed in (8, 11):
        exact = run(frank_wolfe, random_label_problem(seed, **settings), tol=1e-6, max_iter=2000)
        problem = random_label_problem(seed, decoder=lp_relaxation.decode, **settings)
        relaxed = run(frank_wolfe, problem, tol=1e-4, max_iter=500)
        assert relaxed.gap <= 1e-4
        assert relaxed.primal >= exact.primal * (1 - 1e-6)


def test_fractional_labellings_are_planes_of_the_relaxation():
    problem = random_label_problem(8, decoder=lp_relaxation.decode, instances=15, num_labels=4)
    random = np.random.default_rng(0)
    # Every two labels want to differ, which more than two cannot.
    weights = StructuralWeights(
        0.1 * random.standard_normal((problem.num_outputs, problem.num_features + 1)),
        np.full(problem.num_couplings, -5.0),
    )
    found = problem.maximisers(weights)
    np.testing.assert_allclose(problem.values(found.planes, weights), found.bound, atol=1e-5)
    # Differences of spins are even where both labellings are whole.
    assert (np.abs(found.planes.value % 2 - 1) < 0.9).any()


def test_refusals():
    problem = random_label_problem(0)
    with pytest.raises(ValueError, match="tol"):
        run(frank_wolfe, problem, tol=0.0)
    with pytest.raises(ValueError, match="max_iter"):
        run(frank_wolfe, problem, max_iter=0)
    with pytest.raises(ValueError, match="batch_size"):
        run(frank_wolfe, problem, batch_size=0)
    with pytest.raises(ValueError, match=r"state\.weights\.features"):
        frank_wolfe.update(problem, frank_wolfe.init(random_label_problem(0, num_labels=2)))
