"""Smoothed hinges of chains: the optimum and the bounds of Frank–Wolfe's problem, however long a chain is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from references.slopes import relative_error
from scipy import sparse

from lmbm_torch.references import TinyChains, chain_primal
from lmbm_torch.solvers.base import run
from lmbm_torch.solvers.chains.linear import ChainMargins
from lmbm_torch.solvers.chains.problems import chain_problem
from lmbm_torch.solvers.structural import frank_wolfe, lbfgs, smoothing
from lmbm_torch.solvers.structural.problems import StructuralWeights
from lmbm_torch.solvers.structural.smoothing import SmoothedProblem


def chains(seed, lengths, *, states=3, features=3, is_sparse=False, **options):
    """The arguments of a problem: chains of random labels with features near their label's."""
    random = np.random.default_rng(seed)
    start = np.concatenate([[0], np.cumsum(lengths)])
    labels = random.integers(0, states, start[-1])
    rows = random.normal(size=(states, features))[labels] + random.normal(size=(start[-1], features))
    return (sparse.csr_array(rows) if is_sparse else rows), labels, start, states, options


def smoothed(features, labels, start, states, options):
    return ChainMargins(features, labels, start, states, **options)


def cutting(features, labels, start, states, options):
    return chain_problem(features, labels, start, num_states=states, **options)


@settings(max_examples=15)
@given(
    seed=st.integers(0, 2**31),
    lengths=st.lists(st.integers(1, 4), min_size=1, max_size=6),
    states=st.integers(1, 4),
    C=st.sampled_from((0.1, 1.0, 10.0)),
    penalty=st.sampled_from((0.3, 1.0, 5.0)),
    is_sparse=st.booleans(),
)
def test_it_reaches_the_optimum_of_the_hinges(seed, lengths, states, C, penalty, is_sparse):
    weight = np.random.default_rng(seed).random(len(lengths)) + 0.5
    given = chains(seed, lengths, states=states, C=C, sample_weight=weight, coupling_penalty=penalty)
    features, labels, start, *_ = given
    state = run(smoothing, smoothed(*given), tol=1e-5, max_iter=5000)
    inputs = np.column_stack([features, np.ones(len(features))])
    tiny = TinyChains(
        np.split(inputs, start[1:-1]), np.split(labels, start[1:-1]), states, C * weight, penalty
    )
    optimum = chain_primal(tiny)
    assert state.gap <= 1e-5
    assert state.primal == pytest.approx(optimum, rel=2e-5, abs=1e-8)
    assert state.dual <= optimum * (1 + 1e-6) + 1e-8


@pytest.mark.parametrize("is_sparse", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_every_bound_holds_and_the_objective_is_that_of_the_weights(seed, is_sparse):
    lengths = [60, 1, 7, 25]
    weight = np.array([1.0, 0.5, 0.0, 2.0])
    given = chains(seed, lengths, is_sparse=is_sparse, C=2.0, coupling_penalty=0.5, sample_weight=weight)
    problem, theirs = smoothed(*given), cutting(*given)
    states = []
    last = run(smoothing, problem, tol=1e-6, max_iter=3000, callback=states.append)
    assert last.gap <= 1e-6
    for state in states:
        weights = StructuralWeights(*state.weights)
        objective = theirs.primal(weights, theirs.maximisers(weights).bound)
        assert state.primal == pytest.approx(objective, rel=1e-9)
        assert state.dual <= last.primal
        assert state.primal >= last.dual
    assert (np.diff([state.primal for state in states]) <= 0).all()
    assert (np.diff([state.dual for state in states]) >= 0).all()
    other = run(frank_wolfe, theirs, tol=1e-3, max_iter=2000)
    assert max(last.dual, other.dual) <= min(last.primal, other.primal) * (1 + 1e-9)


@pytest.mark.parametrize("temperature", [1.0, 0.1])
def test_the_gradient_is_that_of_finite_differences(temperature):
    given = chains(0, [4, 6], C=2.0, coupling_penalty=0.5)
    problem = SmoothedProblem(smoothed(*given), temperature)
    flat = 0.3 * np.random.default_rng(1).normal(size=problem.num_weights) / temperature
    assert relative_error(problem.value_and_gradient, flat) <= 1e-5


@pytest.mark.parametrize("length", [10, 1000])
def test_the_number_of_gradients_does_not_depend_on_the_length(length):
    given = chains(0, [length] * (4000 // length), states=4, features=10, C=0.3)
    state = run(smoothing, smoothed(*given), tol=1e-3, max_iter=100)
    assert state.gap <= 1e-3


def test_a_run_is_taken_up_where_it_was_put_down():
    problem = smoothed(*chains(0, [30, 40], C=3.0))
    states = []
    run(smoothing, problem, tol=1e-12, max_iter=32, callback=states.append)
    assert [state.num_iters for state in states] == [5, 10, 15, 20, 25, 30, 32]
    again = smoothing.update(problem, states[1])
    np.testing.assert_array_equal(again.inner.flat, states[2].inner.flat)


def test_no_bound_is_below_zero_and_none_is_given_up():
    problem = smoothed(*chains(0, [30, 40], C=1000.0))
    first = smoothing.init(problem)
    assert first.dual == 0.0
    proven = replace(first, dual=1e-3 * first.primal)
    assert smoothing.update(problem, first).dual < proven.dual
    assert smoothing.update(problem, proven).dual == proven.dual


@pytest.mark.parametrize("temperature", [1.0, 0.01])
def test_what_is_left_of_nearly_linear_losses_is_what_newton_s_step_gains(temperature):
    """Losses that hardly weigh are linear, and the bound of a strongly convex function is met."""
    problem = smoothed(*chains(0, [3, 4], C=1e-4 * temperature))
    scaled = SmoothedProblem(problem, temperature)
    first = lbfgs.init(scaled)
    best = run(lbfgs, scaled, tol=1e-14, max_iter=200)
    # In units of the weights, which are τ times as large.
    gained = temperature**2 * (first.objective - best.objective)
    assert smoothing._left(scaled, first) == pytest.approx(gained, rel=1e-2)


def test_it_ends_where_nothing_is_left_to_gain():
    problem = smoothed(*chains(0, [3, 4], C=1e-3))
    state = run(smoothing, problem, tol=1e-300, max_iter=100_000)
    assert state.num_iters < 100_000
    assert state.gap <= 1e-6


def test_refusals():
    given = chains(0, [3, 4])
    problem = smoothed(*given)
    with pytest.raises(ValueError, match="coupling_penalty"):
        ChainMargins(*given[:4], coupling_penalty=0.0)
    with pytest.raises(ValueError, match="labels: expected 0 to 1, got"):
        ChainMargins(*given[:3], 2)
    with pytest.raises(ValueError, match="num_iters"):
        smoothing.update(problem, smoothing.init(problem), num_iters=0)
    with pytest.raises(ValueError, match=r"state\.inner\.flat"):
        smoothing.update(smoothed(*chains(0, [3, 4], states=4)), smoothing.init(problem))
