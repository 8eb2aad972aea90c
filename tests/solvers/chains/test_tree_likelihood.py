from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from strategies.tree import random_parents
from sweeps import slow

from lmbm_torch.energies import TreeEnergy
from lmbm_torch.inference.trees import tree_dp
from lmbm_torch.solvers.base import run
from lmbm_torch.solvers.chains import tree_likelihood
from lmbm_torch.solvers.chains.linear import LikelihoodProblem
from lmbm_torch.solvers.chains.tree_likelihood import (
    TreeLikelihood,
    exponentiated_step,
    line_search_step,
    pair_step,
)
from lmbm_torch.solvers.gram import PrecomputedGram, rbf
from lmbm_torch.solvers.structural import lbfgs

STEPS = [line_search_step, pair_step, exponentiated_step]


def small_problem(seed, sizes=(1, 3, 5, 4), states=3, C=2.0, width=3):
    """Random trees, the last with a second root."""
    generator = torch.Generator().manual_seed(seed)
    nodes = sum(sizes)
    features = torch.randn(nodes, width, generator=generator, dtype=torch.float64)
    labels = torch.randint(states, (nodes,), generator=generator)
    upper = C * (0.5 + torch.rand(len(sizes), generator=generator, dtype=torch.float64))
    parents = [random_parents(size, generator, another_root=size == sizes[-1]) for size in sizes]
    gram = PrecomputedGram(features @ features.mT)
    return TreeLikelihood(gram, labels, torch.cat(parents), torch.tensor(sizes), upper, states), features


def every_labelling(nodes, states=3):
    return torch.tensor(list(product(range(states), repeat=nodes)))


def by_lbfgs(problem, features):
    """The primal optimum, by gradients through enumeration of every labelling."""
    states, width = problem.num_states, features.shape[1]

    def objective(flat):
        weights = torch.tensor(flat, requires_grad=True)
        unary = features @ weights[: width * states].view(width, states)
        transition = weights[width * states :].view(states, states)
        value = 0.5 * weights.square().sum()
        for span, upper in zip(problem.spans, problem.upper, strict=True):
            energy = TreeEnergy(unary[span][None], transition, problem.parents[span])
            scores = energy.score(every_labelling(energy.num_nodes)[:, None])[:, 0]
            value = value + upper * (scores.logsumexp(0) - energy.score(problem.labels[span][None])[0])
        (gradient,) = torch.autograd.grad(value, weights)
        return float(value.detach()), gradient.numpy()

    start = np.zeros(width * states + states**2)
    return minimize(objective, start, jac=True, method="L-BFGS-B", options={"ftol": 1e-15, "gtol": 1e-9})


# A step of pairs sees two labellings of a tree at a time, and takes long where losses weigh much.
@pytest.mark.parametrize(
    ("step", "C", "tol"),
    [
        slow(line_search_step, 0.05, 1e-8),
        (line_search_step, 5.0, 1e-8),
        (pair_step, 0.05, 1e-8),
        slow(pair_step, 0.5, 1e-5),
        (exponentiated_step, 0.05, 1e-8),
        slow(exponentiated_step, 5.0, 1e-8),
    ],
)
def test_the_optimum_is_that_of_primal_maximum_likelihood(step, C, tol):
    problem, features = small_problem(0, C=C)
    state = run(tree_likelihood, problem, step=step, tol=tol, max_iter=3000)
    assert state.gap <= tol
    found = by_lbfgs(problem, features)
    assert state.primal == pytest.approx(found.fun, rel=10 * tol)
    assert state.dual <= found.fun * (1 + 1e-9)
    weights = torch.cat([(features.mT @ state.coef).flatten(), state.transition.flatten()])
    np.testing.assert_allclose(weights.numpy(), found.x, atol=2e-3)


def test_on_chains_the_optimum_is_that_of_the_primal_solver():
    generator = torch.Generator().manual_seed(4)
    features = torch.randn(12, 3, generator=generator, dtype=torch.float64)
    labels = torch.randint(3, (12,), generator=generator)
    start = np.array([0, 5, 6, 12])
    # The primal solver's bias is a constant feature.
    gram = PrecomputedGram(features @ features.mT + 1)
    lengths, upper = torch.tensor(np.diff(start)), torch.full((3,), 2.0, dtype=torch.float64)
    problem = TreeLikelihood.of_chains(gram, labels, lengths, upper, 3)
    state = run(tree_likelihood, problem, tol=1e-7)
    primal = LikelihoodProblem(features.numpy(), labels.numpy(), start, 3, C=2.0)
    expected = run(lbfgs, primal, tol=1e-8)
    assert state.primal == pytest.approx(expected.objective, rel=1e-6)
    np.testing.assert_allclose(state.transition.numpy().ravel(), expected.weights.couplings, atol=2e-3)


@pytest.mark.parametrize("step", STEPS)
def test_the_dual_climbs_and_a_kernel_serves_as_well(step):
    problem, features = small_problem(1, sizes=(4, 2, 5), C=0.5)
    gram = PrecomputedGram(rbf(features, features, 0.3))
    problem = TreeLikelihood(gram, problem.labels, problem.parents, problem.sizes, problem.upper, 3)
    duals = []
    state = run(tree_likelihood, problem, step=step, tol=1e-6, callback=lambda each: duals.append(each.dual))
    assert state.gap <= 1e-6
    assert len(duals) > 2
    assert (np.diff(duals) > -1e-10 * abs(duals[-1])).all()


@pytest.mark.parametrize("step", STEPS)
def test_marginals_stay_those_of_one_distribution(step):
    problem, _ = small_problem(2)
    state = tree_likelihood.update(problem, tree_likelihood.init(problem), step=step, seed=3)
    for each in state.beliefs:
        child = (each.parents >= 0).nonzero()[:, 0]
        own, upward = each.edges[child].sum(1), each.edges[child].sum(2)
        torch.testing.assert_close(own, each.nodes[child], atol=1e-12, rtol=0)
        torch.testing.assert_close(upward, each.nodes[each.parents[child]], atol=1e-12, rtol=0)
        energy = each.energy()
        again = tree_dp.marginals(energy)
        torch.testing.assert_close(again.states[0], each.nodes)
        log_probabilities = energy.score(every_labelling(len(each.nodes))[:, None])[:, 0]
        entropy = -(log_probabilities.exp() @ log_probabilities)
        assert each.entropy() == pytest.approx(float(entropy), abs=1e-12)
    resumed = tree_likelihood.update(problem, state, step=step, seed=3)
    twice = run(tree_likelihood, problem, step=step, tol=1e-14, max_iter=2, seed=3)
    assert resumed.dual == twice.dual


def test_a_pair_of_labellings_moves_mass_between_them_alone(monkeypatch):
    problem, _ = small_problem(5, sizes=(4, 3))
    state = tree_likelihood.init(problem)
    span, upper = problem.spans[0], float(problem.upper[0])
    rows = problem.gram.rows(span)
    block = tree_likelihood.TreeBlock(
        rows[:, span], rows @ state.coef, state.transition, upper, state.beliefs[0]
    )
    monkeypatch.setattr(tree_likelihood, "PAIR_STEPS", 1)
    found = pair_step(block)
    moved = found - block.current
    change = moved.nodes
    share = float(change.max())
    assert share > 0
    # One state of a node gains what one other loses, where the labellings differ.
    assert set((change / share).round(decimals=9).flatten().tolist()) <= {-1.0, 0.0, 1.0}
    near = [found.moved(moved, by) for by in (-0.01, 0.01)]
    assert block.gain(found) > max(block.gain(each) for each in near)


def test_the_gap_is_a_sum_of_divergences():
    problem, _ = small_problem(3)
    state = tree_likelihood.update(problem, tree_likelihood.init(problem))
    total = 0.0
    for span, upper, each in zip(problem.spans, problem.upper.tolist(), state.beliefs, strict=True):
        unary = problem.gram.rows(span) @ state.coef
        model, own = TreeEnergy(unary[None], state.transition, each.parents), each.energy()
        every = every_labelling(len(unary))[:, None]
        log_own, log_model = own.score(every)[:, 0], model.score(every)[:, 0]
        log_model = log_model - log_model.logsumexp(0)
        total += upper * float((log_own.exp() * (log_own - log_model)).sum())
    assert state.primal - state.dual == pytest.approx(total, rel=1e-8)


def test_bad_problems_are_refused():
    problem, _ = small_problem(0)
    fields = {name: getattr(problem, name) for name in ("gram", "labels", "parents", "sizes", "upper")}

    def changed(**others):
        return TreeLikelihood(**{**fields, "num_states": 3, **others})

    with pytest.raises(ValueError, match="sizes: expected at least 1 each, 13 in all"):
        changed(sizes=problem.sizes + 1)
    with pytest.raises(ValueError, match="parents of tree 1: expected −1 to -1 for node 0, got 0"):
        changed(parents=problem.parents.clamp(min=0).index_fill(0, torch.tensor([0]), -1))
    with pytest.raises(ValueError, match="labels: expected 0 to 1"):
        changed(num_states=2)
    with pytest.raises(ValueError, match="upper: expected values above 0"):
        changed(upper=0 * problem.upper)
    with pytest.raises(ValueError, match="tol"):
        run(tree_likelihood, problem, tol=0.0)
