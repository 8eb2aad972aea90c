"""Max-margin Markov networks of chains: three formulations and three solvers, one optimum."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from lmbm_torch.data import digit_numbers
from lmbm_torch.references import TinyChains, chain_dual, chain_primal, factored_chain_dual
from lmbm_torch.solvers.base import run
from lmbm_torch.solvers.chains import exponentiated_gradient, smo
from lmbm_torch.solvers.chains.kernel_problem import ChainKernelProblem
from lmbm_torch.solvers.chains.problems import chain_problem
from lmbm_torch.solvers.structural import frank_wolfe
from lmbm_torch.solvers.structural.problems import CuttingPlanes


class Words:
    """Random chains of one to four positions, in every form that a solver takes."""

    def __init__(self, seed, *, num_words=5, num_states=3, num_features=3, C=1.0, penalty=1.0, longest=4):
        random = np.random.default_rng(seed)
        lengths = random.integers(1, longest + 1, num_words)
        self.start = np.concatenate([[0], lengths.cumsum()])
        self.labels = random.integers(0, num_states, self.start[-1])
        shapes = random.normal(size=(num_states, num_features))
        self.features = shapes[self.labels] + random.normal(size=(self.start[-1], num_features))
        self.num_states, self.C, self.penalty = num_states, C, penalty
        self.weight = random.random(num_words) + 0.5

    @property
    def settings(self):
        return {
            "num_states": self.num_states,
            "C": self.C,
            "sample_weight": self.weight,
            "coupling_penalty": self.penalty,
        }

    def linear(self, *, csr=False):
        features = sparse.csr_array(self.features) if csr else self.features
        return chain_problem(features, self.labels, self.start, **self.settings)

    def kernel(self):
        gram = 1 + self.features @ self.features.T
        return ChainKernelProblem(gram, self.labels, self.start, **self.settings)

    def tiny(self):
        inputs = np.column_stack([self.features, np.ones(len(self.features))])
        return TinyChains(
            np.split(inputs, self.start[1:-1]),
            np.split(self.labels, self.start[1:-1]),
            self.num_states,
            self.C * self.weight,
            self.penalty,
        )


def words():
    return st.builds(
        Words,
        seed=st.integers(0, 2**31),
        num_words=st.integers(1, 6),
        num_states=st.integers(1, 4),
        C=st.sampled_from((0.1, 1.0, 10.0)),
        penalty=st.sampled_from((0.3, 1.0, 5.0)),
        longest=st.integers(1, 4),
    )


@pytest.mark.parametrize("seed", range(4))
def test_the_three_formulations_have_one_optimum(seed):
    tiny = Words(seed, C=0.5 + seed, penalty=1.0 + seed % 2).tiny()
    values = [each(tiny) for each in (chain_primal, chain_dual)]
    assert factored_chain_dual(tiny) == pytest.approx(values[0], rel=1e-6)
    assert values[1] == pytest.approx(values[0], rel=1e-6)


@settings(max_examples=15)
@given(problem=words())
def test_smo_reaches_the_optimum(problem):
    state = run(smo, problem.kernel(), tol=1e-7, max_iter=5000)
    assert state.gap <= 1e-7
    assert state.primal == pytest.approx(chain_primal(problem.tiny()), rel=1e-5, abs=1e-8)


@settings(max_examples=10)
@given(problem=words(), csr=st.booleans())
def test_frank_wolfe_reaches_the_optimum(problem, csr):
    state = run(frank_wolfe, problem.linear(csr=csr), tol=1e-7, max_iter=2000)
    assert state.gap <= 1e-7
    assert state.primal == pytest.approx(chain_primal(problem.tiny()), rel=1e-5, abs=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_exponentiated_gradient_reaches_the_optimum(seed):
    problem = Words(seed, C=0.5)
    state = run(exponentiated_gradient, problem.kernel(), tol=3e-3, max_iter=2000)
    assert state.gap <= 3e-3
    assert state.primal == pytest.approx(chain_primal(problem.tiny()), rel=3e-3)


@pytest.mark.parametrize("solver", [smo, exponentiated_gradient])
def test_every_state_is_feasible_and_no_dual_value_falls(solver):
    problem = Words(7, num_words=8, C=3.0).kernel()
    best = run(smo, problem, tol=1e-8, max_iter=5000).primal
    states = [solver.init(problem)]
    for _ in range(5):
        states.append(solver.update(problem, states[-1], num_iters=2))
    for state in states:
        assert state.nodes.min() >= 0
        np.testing.assert_allclose(state.nodes.sum(1), 1, rtol=1e-9)
        assert state.dual <= best * (1 + 1e-7)
        assert state.primal >= best * (1 - 1e-7)
    assert (np.diff([state.dual for state in states]) >= -1e-10).all()
    assert states[-1].gap < states[0].gap


def test_edges_agree_with_the_nodes_at_both_ends():
    problem = Words(8, num_words=8, C=3.0).kernel()
    state = run(smo, problem, tol=1e-4)
    steps = problem.step_starts
    np.testing.assert_allclose(state.edges.sum(2), state.nodes[steps], atol=1e-9)
    np.testing.assert_allclose(state.edges.sum(1), state.nodes[steps + 1], atol=1e-9)


@pytest.mark.parametrize("solver", [smo, exponentiated_gradient])
def test_runs_are_those_of_their_seed_and_take_up_where_they_were_put_down(solver):
    problem = Words(9, num_words=10, C=3.0).kernel()
    states = []
    run(solver, problem, tol=1e-15, max_iter=25, seed=3, callback=states.append)
    assert [state.num_iters for state in states] == [10, 20, 25]
    again = solver.update(problem, states[0], seed=3)
    np.testing.assert_array_equal(again.nodes, states[1].nodes)
    other = solver.update(problem, states[0], seed=4)
    assert not np.array_equal(other.nodes, states[1].nodes)


def test_chains_of_one_position_are_the_multi_class_svm_of_crammer_and_singer():
    from sklearn.svm import LinearSVC

    problem = Words(10, num_words=40, longest=1, C=0.7)
    problem.weight = np.ones(40)
    inputs = np.column_stack([problem.features, np.ones(40)])
    # liblinear's dual carries two losses for one of ours where classes differ by one weight vector each.
    peer = LinearSVC(
        multi_class="crammer_singer", C=0.7, tol=1e-8, fit_intercept=False, max_iter=100_000
    ).fit(inputs, problem.labels)
    state = run(frank_wolfe, problem.linear(), tol=1e-8, max_iter=3000)
    np.testing.assert_allclose(state.weights.features, peer.coef_, atol=1e-3)
    assert run(smo, problem.kernel(), tol=1e-7, max_iter=5000).primal == pytest.approx(state.primal, rel=1e-6)


def test_planes_say_what_labellings_are_worth():
    problem = Words(11).linear()
    random = np.random.default_rng(0)
    examples = np.arange(problem.num_examples)
    labels = random.integers(0, 3, problem.num_rows)
    planes = problem.oracle.planes(examples, labels)
    assert isinstance(planes, CuttingPlanes)
    weights = run(frank_wolfe, problem, tol=1e-2).weights
    scores, transition = problem.scores(weights), weights.couplings.reshape(3, 3)
    for each, value in zip(examples, problem.values(planes, weights), strict=True):
        span = slice(*problem.start[each : each + 2])
        total = [
            scores[span][np.arange(len(path)), path].sum() + transition[path[:-1], path[1:]].sum()
            for path in (problem.oracle.labels[span], labels[span])
        ]
        loss = (problem.oracle.labels[span] != labels[span]).sum()
        assert value == pytest.approx(loss - total[0] + total[1])


def test_refusals():
    own = Words(0)
    with pytest.raises(ValueError, match="labels: expected 0 to 1, got"):
        chain_problem(own.features, own.labels + 1, own.start, num_states=2)
    with pytest.raises(ValueError, match="labels: expected integers"):
        chain_problem(own.features, own.labels * 1.0, own.start, num_states=3)
    gram = own.features @ own.features.T
    for name, matrix, start in (
        ("gram: expected shape", gram[1:], own.start),
        ("gram: expected finite", gram * np.nan, own.start),
        ("gram: expected a symmetric", np.triu(gram), own.start),
        ("start: expected ascending", gram, own.start[1:]),
    ):
        with pytest.raises(ValueError, match=name):
            ChainKernelProblem(matrix, own.labels, start, 3)
    for setting in ("C", "coupling_penalty"):
        with pytest.raises(ValueError, match=setting):
            ChainKernelProblem(own.kernel().gram, own.labels, own.start, 3, **{setting: 0.0})
    for solver in (smo, exponentiated_gradient):
        with pytest.raises(ValueError, match="tol"):
            run(solver, own.kernel(), tol=0.0)
        with pytest.raises(ValueError, match="max_iter"):
            run(solver, own.kernel(), max_iter=0)
        with pytest.raises(ValueError, match=r"state\.nodes"):
            solver.update(Words(0, num_states=4).kernel(), solver.init(own.kernel()))
        with pytest.raises(ValueError, match="num_iters"):
            solver.update(own.kernel(), solver.init(own.kernel()), num_iters=0)


def test_bounds_of_different_orders_of_visits_never_cross():
    """Labellings may share a position whose mass is smaller than the step, which must not lose any of it."""
    data = digit_numbers(60, seed=0).within(0)
    features, labels = np.concatenate(data.features), np.concatenate(data.labels)
    squares = np.square(features[:, None] - features[None]).sum(2, dtype=np.float64)
    start = np.concatenate([[0], np.cumsum([len(each) for each in data.labels])])
    problem = ChainKernelProblem(np.exp(-0.1 * squares) + 1, labels, start, 10)
    states = [run(smo, problem, tol=1e-4, seed=seed) for seed in range(3)]
    for state in states:
        steps = problem.step_starts
        np.testing.assert_allclose(state.edges.sum(2), state.nodes[steps], atol=1e-9)
        np.testing.assert_allclose(state.edges.sum(1), state.nodes[steps + 1], atol=1e-9)
    assert max(state.dual for state in states) <= min(state.primal for state in states)
