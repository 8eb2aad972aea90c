"""The multi-class SVM with a kernel: its optimum by other means, its blocks, its certificate."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits
from sklearn.metrics.pairwise import rbf_kernel

from lmbm_torch.references import TinyChains, chain_primal
from lmbm_torch.solvers.base import run
from lmbm_torch.solvers.chains import multi_class, smo
from lmbm_torch.solvers.chains.kernel_problem import ChainKernelProblem


def classes(gram, labels, C=1.0, weight=None):
    start = np.arange(len(labels) + 1)
    return ChainKernelProblem(gram, labels, start, int(labels.max()) + 1, C=C, sample_weight=weight)


def digits(size, C):
    X, y = load_digits(return_X_y=True)
    return classes(1 + rbf_kernel(X[:size], gamma=1e-3), y[:size], C)


def random_inputs(seed, size, states, features=3):
    random = np.random.default_rng(seed)
    labels = random.integers(0, states, size)
    labels[0] = states - 1
    inputs = random.normal(size=(states, features))[labels] + random.normal(size=(size, features))
    return np.column_stack([inputs, np.ones(size)]), labels, random.random(size) + 0.5


@settings(max_examples=20)
@given(
    seed=st.integers(0, 2**31),
    size=st.integers(2, 9),
    states=st.integers(2, 5),
    C=st.sampled_from((0.1, 1.0, 30.0)),
)
def test_the_optimum_is_that_of_a_convex_solver(seed, size, states, C):
    inputs, labels, weight = random_inputs(seed, size, states)
    problem = classes(inputs @ inputs.T, labels, C, weight)
    state = run(multi_class, problem, tol=1e-7, max_iter=20_000)
    tiny = TinyChains(list(inputs[:, None]), list(labels[:, None]), problem.num_states, C * weight)
    assert state.gap <= 1e-7
    assert state.primal == pytest.approx(chain_primal(tiny), rel=1e-5, abs=1e-8)


@pytest.mark.parametrize("C", [0.1, 10.0])
def test_the_optimum_is_that_of_pairwise_steps(C):
    problem = digits(150, C)
    expected = run(smo, problem, tol=1e-5, max_iter=5000)
    state = run(multi_class, problem, tol=1e-5)
    assert max(state.gap, expected.gap) <= 1e-5
    assert state.primal == pytest.approx(expected.primal, rel=2e-5)
    assert state.dual <= expected.primal
    assert expected.dual <= state.primal


def test_few_active_instances_among_many_leave_all_values_right():
    # Most digits are far from any margin: after the first passes others go on among themselves.
    problem = digits(1200, 10.0)
    state = run(multi_class, problem, tol=1e-6)
    assert (state.nodes.max(1) < 1).mean() < 0.5
    assert state.gap <= 1e-6
    assert state.num_iters <= 100


def test_states_are_feasible_and_their_dual_rises():
    problem = digits(200, 3.0)
    states = [multi_class.init(problem)]
    for _ in range(6):
        states.append(multi_class.update(problem, states[-1], num_iters=1))
    for number, state in enumerate(states):
        assert state.num_iters == number
        assert state.nodes.min() >= 0
        np.testing.assert_allclose(state.nodes.sum(1), 1, rtol=1e-12)
    assert (np.diff([state.dual for state in states]) > 0).all()
    assert states[-1].gap < 0.2 * states[0].gap


def test_instances_without_weight_or_likeness_change_nothing():
    inputs, labels, _ = random_inputs(1, 40, 4)
    weight = np.tile([1.0, 0.0], 20)
    inputs[2] = 0
    both = run(multi_class, classes(inputs @ inputs.T, labels, 2.0, weight), tol=1e-7, max_iter=5000)
    some = run(multi_class, classes(inputs[::2] @ inputs[::2].T, labels[::2], 2.0), tol=1e-7, max_iter=5000)
    assert both.primal == pytest.approx(some.primal, rel=1e-6)
    np.testing.assert_array_equal(both.nodes[1::2], np.eye(4)[labels[1::2]])
    # No weight vector tells what is alike to nothing from the truth: its loss is certain.
    assert both.nodes[2, labels[2]] == pytest.approx(0, abs=1e-12)


def test_one_instance_is_solved_by_hand():
    # Mass 2/3 of 5, half to each of two others, makes w_y = 2/3 and w_s = −1/3: a margin of 1.
    problem = classes(np.ones((1, 1)), np.array([2]), C=5.0)
    state = run(multi_class, problem, tol=1e-9)
    np.testing.assert_allclose(state.nodes[0], [1 / 15, 1 / 15, 13 / 15], atol=1e-5)
    assert state.primal == pytest.approx(1 / 3, rel=1e-6)


def test_values_are_those_of_loops():
    inputs, labels, weight = random_inputs(3, 12, 3)
    problem = classes(inputs @ inputs.T, labels, 3.0, weight)
    state = multi_class.update(problem, multi_class.init(problem), num_iters=1)
    upper = 3.0 * weight
    parts = [
        own * np.outer(np.eye(3)[y] - mass, x)
        for own, y, mass, x in zip(upper, labels, state.nodes, inputs, strict=True)
    ]
    weights = np.sum(parts, axis=0)
    square = (weights**2).sum() / 2
    hinge = sum(
        own * max((s != y) + (weights[s] - weights[y]) @ x for s in range(3))
        for own, y, x in zip(upper, labels, inputs, strict=True)
    )
    dual = sum(own * (1 - mass[y]) for own, y, mass in zip(upper, labels, state.nodes, strict=True))
    assert state.primal == pytest.approx(square + hinge, rel=1e-12)
    assert state.dual == pytest.approx(dual - square, rel=1e-12)
    assert state.gap > 1e-4


def test_runs_are_those_of_their_seed_and_take_up_where_they_were_put_down():
    problem, states = digits(200, 10.0), []
    run(multi_class, problem, tol=1e-12, max_iter=4, seed=3, callback=states.append)
    assert [state.num_iters for state in states] == [1, 2, 3, 4]
    again = multi_class.update(problem, states[1], num_iters=1, tol=1e-12, seed=3)
    np.testing.assert_array_equal(again.nodes, states[2].nodes)
    other = multi_class.update(problem, states[1], num_iters=1, tol=1e-12, seed=4)
    assert not np.array_equal(other.nodes, states[2].nodes)


def test_refusals():
    problem = digits(20, 1.0)
    state = multi_class.init(problem)
    chains = ChainKernelProblem(problem.gram, problem.labels, np.array([0, 5, 20]), 10)
    with pytest.raises(ValueError, match="start: expected chains of one position, got a chain of 15"):
        multi_class.init(chains)
    with pytest.raises(ValueError, match=r"state\.nodes"):
        multi_class.update(digits(30, 1.0), state)
    with pytest.raises(ValueError, match="num_iters"):
        multi_class.update(problem, state, num_iters=0)
    with pytest.raises(ValueError, match="tol"):
        multi_class.update(problem, state, tol=0.0)
