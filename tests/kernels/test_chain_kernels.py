"""Sweeps over chains against definitions, convex programmes and routines in torch."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from interpreted import interpreted
from strategies import chain_sweeps
from strategies.chain import random_chain_energy

from lmbm_torch.energies import ChainEnergy
from lmbm_torch.inference.trees import chain_dp, chain_steps
from lmbm_torch.kernels.dual import chains as steps
from lmbm_torch.kernels.search import chains
from lmbm_torch.references import TinyChains, chain_primal
from lmbm_torch.solvers.base import run
from lmbm_torch.solvers.chains import exponentiated_gradient, smo
from lmbm_torch.solvers.chains.kernel_problem import ChainKernelProblem
from lmbm_torch.solvers.chains.linear import LikelihoodProblem
from lmbm_torch.solvers.chains.problems import padded_chains


def marginals(unary, lengths, tables, strides, nodes, edges):
    """Forward–backward by definition: the oracle of the compiled routine."""
    log_partition = np.empty(len(unary))
    for x, length in enumerate(lengths):
        steps = [
            np.log(tables[x * strides[0] + t * strides[1]].astype(np.float64)) for t in range(length - 1)
        ]
        rows = unary[x, :length].astype(np.float64)
        forward, backward = [rows[0]], [np.zeros_like(rows[0])]
        for row, step in zip(rows[1:], steps, strict=True):
            forward.append(row + np.logaddexp.reduce(forward[-1][:, None] + step, 0))
        for row, step in zip(rows[:0:-1], steps[::-1], strict=True):
            backward.append(np.logaddexp.reduce(step + row + backward[-1], 1))
        backward = backward[::-1]
        log_partition[x] = total = np.logaddexp.reduce(forward[-1])
        nodes[x, :length] = np.exp(np.add(forward, backward) - total)
        for t, step in enumerate(steps):
            edges[x, t] = np.exp(forward[t][:, None] + step + rows[t + 1] + backward[t + 1] - total)
    return log_partition


def likelihood(scores, transition, start, labels, weight):
    """Return the weighted losses and both gradients by definition."""
    scores, transition = (torch.from_numpy(each).requires_grad_() for each in (scores, transition))
    total = 0 * (scores.sum() + transition.sum())
    for first, end, own in zip(start[:-1], start[1:], weight, strict=True):
        message, path = scores[first], labels[first:end]
        for row in scores[first + 1 : end]:
            message = row + (message[:, None] + transition).logsumexp(0)
        truth = scores[np.arange(first, end), path].sum() + transition[path[:-1], path[1:]].sum()
        total = total + own * (message.logsumexp(0) - truth)
    return float(total.detach()), *(each.numpy() for each in torch.autograd.grad(total, (scores, transition)))


def random_problem(seed):
    """Chains of features, some without weight, and the same for a convex solver."""
    random = np.random.default_rng(seed)
    start = np.concatenate([[0], random.integers(1, 6, 8).cumsum()])
    rows, labels = random.normal(size=(start[-1], 3)), random.integers(0, 4, start[-1])
    weight = np.where(random.random(8) < 0.8, 1.0, 0.0)
    settings = {"C": 2.0, "coupling_penalty": 0.5 + seed, "sample_weight": weight}
    problem = ChainKernelProblem(1 + rows @ rows.T, labels, start, 4, **settings)
    inputs = np.split(np.column_stack([rows, np.ones(len(rows))]), start[1:-1])
    return problem, TinyChains(inputs, np.split(labels, start[1:-1]), 4, 2.0 * weight, 0.5 + seed)


@pytest.mark.parametrize("solver", [smo, exponentiated_gradient])
@pytest.mark.parametrize("seed", range(4))
def test_sweeps_are_those_of_the_definition(monkeypatch, solver, seed):
    problem, _ = random_problem(seed)
    begun = solver.update(problem, solver.init(problem), num_iters=5)
    # After a step to the best length two labellings are equally good, and rounding chooses the next.
    monkeypatch.setattr(smo, "STEPS_PER_VISIT", 1)
    found = [solver.update(problem, begun, num_iters=1)]
    monkeypatch.setattr(solver, "kernels", lambda _: chain_sweeps)
    found.append(solver.update(problem, begun, num_iters=1))
    np.testing.assert_allclose(found[1].nodes, found[0].nodes, atol=1e-8)
    if solver is exponentiated_gradient:
        np.testing.assert_array_equal(found[1].rates, found[0].rates)
    assert found[1].dual == pytest.approx(found[0].dual, rel=1e-9)
    assert found[1].dual > begun.dual


@pytest.mark.parametrize("seed", range(3))
def test_scores_after_a_visit_are_those_of_the_changed_marginals(seed):
    random, upper, penalty = np.random.default_rng(seed), 2.0, 0.7
    rows, truth = random.normal(size=(5, 3)), np.eye(4)[random.integers(0, 4, 5)]
    gram, fields, transition = 1 + rows @ rows.T, 1 - truth, np.zeros((4, 4))
    nodes, edges = truth.copy(), truth[:-1, :, None] * truth[1:, None]
    begun, joint, change = fields.copy(), edges.sum(0), np.zeros((5, 4))
    visit = interpreted("dual.chains").visit
    visit(gram, fields, transition, nodes, edges, upper, penalty, 10, change, np.zeros((4, 4)))
    np.testing.assert_allclose(change, nodes - truth, atol=1e-12)
    assert np.abs(change).sum() > 0.1
    np.testing.assert_allclose(fields, begun - upper * gram @ change, atol=1e-12)
    np.testing.assert_allclose(transition, -upper / penalty * (edges.sum(0) - joint), atol=1e-12)


def test_chains_without_weight_change_no_optimum():
    problem, tiny = random_problem(5)
    assert (problem.upper == 0).any()
    assert run(smo, problem, tol=1e-6, max_iter=2000).primal == pytest.approx(chain_primal(tiny), rel=1e-5)


@pytest.mark.parametrize("scale", [1.0, 100.0, 1e4])
def test_marginals_of_log_potentials_however_far_apart(scale):
    random = np.random.default_rng(6)
    log_nodes, log_pairs = scale * random.normal(size=(6, 4)), scale * random.normal(size=(4, 4))
    nodes, pairs = np.empty_like(log_nodes), np.empty_like(log_pairs)
    steps.chain_marginals(log_nodes, log_pairs, nodes, pairs)
    energy = ChainEnergy(torch.from_numpy(log_nodes)[None], torch.from_numpy(log_pairs))
    expected = chain_dp.marginals(energy)
    np.testing.assert_allclose(nodes, expected.states[0], atol=1e-9)
    np.testing.assert_allclose(pairs, expected.edges[0].sum(0), atol=1e-9)


def random_likelihood(seed, scale):
    random = np.random.default_rng(seed)
    count, states = random.integers(1, 30), random.integers(1, 6)
    start = np.concatenate([[0], random.integers(1, 9, count).cumsum()])
    labels = random.integers(states, size=start[-1])
    weight = np.where(random.random(count) < 0.7, random.random(count), 0)
    weight[0] = 1.0
    transition = scale * random.uniform(-1, 1, (states, states))
    return scale * random.normal(size=(start[-1], states)), transition, start, labels, weight


@pytest.mark.parametrize("scale", [0.1, 1.0, 30.0, 150.0, 1e3])
@pytest.mark.parametrize("seed", range(4))
def test_likelihoods_and_gradients_are_those_of_dynamic_programming(seed, scale):
    scores, transition, start, labels, weight = random_likelihood(seed, scale)
    energy = padded_chains(scores, transition, np.diff(start))
    unary, table = energy.unary.requires_grad_(), energy.transition.requires_grad_()
    padded = torch.zeros(energy.inside.shape, dtype=torch.int64)
    padded[energy.inside] = torch.from_numpy(labels)
    losses = chain_dp.log_partition(energy) - energy.score(padded)
    total = torch.from_numpy(weight) @ losses
    options = {"allow_unused": True, "materialize_grads": True}
    by_score, by_pair = torch.autograd.grad(total, (unary, table), **options)
    for compute in (
        steps.loss_and_gradient,
        lambda *arrays: steps._by_logarithms(*arrays, np.ones(len(weight), np.bool_)),
    ):
        errors, pairs = np.full_like(scores, np.nan), np.ones_like(transition)
        loss = compute(scores, transition, start, labels, weight, errors, pairs)
        assert loss == pytest.approx(float(total.detach()), rel=1e-9, abs=1e-9)
        np.testing.assert_allclose(errors, by_score[energy.inside].numpy(), atol=1e-9)
        np.testing.assert_allclose(pairs - 1, by_pair.numpy(), atol=1e-9)


@pytest.mark.parametrize("kind", ["steps", "labels", "disconnected"])
@pytest.mark.parametrize("seed", range(4))
def test_likelihoods_with_forbidden_labels_and_steps_are_those_of_definitions(seed, kind):
    """Half of the steps or labels forbidden, or two states that no step joins and that win in turn."""
    scores, transition, start, labels, weight = random_likelihood(seed, 3.0)
    random = np.random.default_rng(seed)
    if kind == "disconnected":
        scores = np.zeros((250, 2))
        scores[:100, 1] = scores[100:, 0] = -10.0
        transition, start, labels = np.zeros((2, 2)), np.array([0, 250]), np.full(250, seed % 2)
        weight = np.ones(1)
        transition[[0, 1], [1, 0]] = -1e30
    elif kind == "steps":
        forbidden = random.random(transition.shape) < 0.5
        befores = np.delete(np.arange(len(labels)), start[1:] - 1)
        forbidden[labels[befores], labels[befores + 1]] = False
        transition = np.where(forbidden, -1e30, transition)
    else:
        forbidden = random.random(scores.shape) < 0.5
        forbidden[np.arange(len(labels)), labels] = False
        scores = np.where(forbidden, -1e30, scores)
    errors, pairs = np.full_like(scores, np.nan), np.zeros_like(transition)
    loss = steps.loss_and_gradient(scores, transition, start, labels, weight, errors, pairs)
    expected = likelihood(scores, transition, start, labels, weight)
    assert loss == pytest.approx(expected[0], rel=1e-9, abs=1e-9)
    np.testing.assert_allclose(errors, expected[1], atol=1e-9)
    np.testing.assert_allclose(pairs, expected[2], atol=1e-9)


@pytest.mark.parametrize("scale", [1.0, 1e3])
def test_a_problem_of_chains_is_the_sum_of_its_blocks(scale):
    scores, _, start, labels, weight = random_likelihood(0, 1.0)
    states = scores.shape[1]
    problem = LikelihoodProblem(scores, labels, start, states, C=2.0, sample_weight=weight)
    flat = scale * np.random.default_rng(1).normal(size=problem.num_weights)
    value, gradient = problem.value_and_gradient(flat)
    weights = flat.reshape(-1, states)
    own = scores @ weights[: -states - 1] + weights[-states - 1]
    loss, errors, pairs = likelihood(own, weights[-states:].copy(), start, labels, 2.0 * weight)
    assert value == pytest.approx(0.5 * flat @ flat + loss)
    rows = np.vstack([scores.T @ errors, errors.sum(0), pairs]) + weights
    np.testing.assert_allclose(gradient, rows.ravel(), atol=1e-9 * scale)


@pytest.mark.parametrize("forbidden", [0, 0.3])
@pytest.mark.parametrize("per_step", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("is_tied", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_every_viterbi_finds_the_same_paths(monkeypatch, seed, is_tied, dtype, per_step, forbidden):
    energy = random_chain_energy(
        seed, max_length=7, num_states=3, batch_size=40, scale=2.0, per_step=per_step, forbidden=forbidden
    )
    if is_tied:
        # Of whole numbers sums are exact, and many labellings are equally good.
        energy = replace(energy, unary=energy.unary.round(), transition=energy.transition.round())
    energy = energy.to(dtype)
    found = []
    for kernel in (chains, None):
        monkeypatch.setattr(chain_steps, "compiled", lambda *_, kernel=kernel: kernel)
        found.append(chain_dp.decode(energy).labels)
    assert torch.equal(*found)


def test_a_chain_of_which_all_labellings_are_forbidden_is_told():
    scores = np.zeros((5, 2))
    scores[3] = -np.inf
    labels = np.full(5, 9)
    tables, first, lengths = np.zeros((1, 2, 2)), np.array([0, 2]), np.array([2, 3])
    assert chains.best_paths(scores, first, lengths, tables, (0, 0), labels).tolist() == [True, False]
    assert labels.tolist() == [0, 0, 9, 9, 9]


def test_a_path_s_rounding_does_not_grow_with_the_score():
    random = np.random.default_rng(0)
    first, lengths = np.array([0]), np.array([1000])
    # One part for all states, which decides nothing; the sum over the chain would round to 1e-5.
    scores = 1e8 + 1e-6 * random.normal(size=(1000, 3))
    tables = np.zeros((1, 3, 3))
    labels = np.empty(1000, np.int64)
    assert chains.best_paths(scores, first, lengths, tables, (0, 0), labels).all()
    np.testing.assert_array_equal(labels, scores.argmax(1))


@pytest.mark.parametrize("scale", [0.1, 1.0, 30.0, 100.0])
@pytest.mark.parametrize("per_step", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("seed", range(3))
def test_every_forward_backward_finds_the_same_marginals(monkeypatch, seed, dtype, per_step, scale):
    energy = random_chain_energy(
        seed, max_length=9, num_states=4, batch_size=20, scale=scale, per_step=per_step
    ).to(dtype)
    found = []
    for kernel in (chains, SimpleNamespace(marginals=marginals), None):
        monkeypatch.setattr(chain_steps, "compiled", lambda *_, kernel=kernel: kernel)
        found.append(chain_dp.marginals(energy))
    for each in found[:2]:
        for name in ("states", "edges", "log_partition"):
            torch.testing.assert_close(getattr(each, name), getattr(found[2], name))


def test_sums_over_the_steps_are_those_of_each_step():
    energy = random_chain_energy(0, max_length=7, num_states=3, batch_size=5)
    prepared = chain_steps.Chains.of(energy)
    nodes, each, scale = chain_steps.sums(energy, prepared)
    same, summed, total = chain_steps.sums(energy, prepared, each_step=False)
    torch.testing.assert_close(summed, each.sum(1, keepdim=True))
    torch.testing.assert_close((same, total), (nodes, scale), rtol=0, atol=0)


@pytest.mark.parametrize("apart", [600.0, 660.0])
def test_what_only_the_far_side_of_a_chain_favours_survives_in_the_kernel(monkeypatch, apart):
    # State 1 is as unlikely as can be until the last step makes up for it.
    unary = torch.zeros(1, 4, 2, dtype=torch.float64)
    unary[0, 0, 1] = 30 - apart
    transition = torch.tensor([[0.0, -apart], [-apart, 0.0]], dtype=torch.float64)
    unary[0, 3, 0] = -apart
    energy = ChainEnergy(unary, transition)
    found = chain_dp.marginals(energy)
    monkeypatch.setattr(chain_steps, "compiled", lambda *_: None)
    expected = chain_dp.marginals(energy)
    assert float(expected.states[0, 0, 1]) > 1e-16
    torch.testing.assert_close(found.states, expected.states, rtol=1e-10, atol=0)
    torch.testing.assert_close(found.edges, expected.edges, rtol=1e-10, atol=1e-300)


def test_the_kernel_sums_long_chains_without_another_routine():
    random = np.random.default_rng(0)
    unary = random.normal(scale=5.0, size=(1, 4000, 3))
    tables = np.exp(random.normal(size=(1, 3, 3)))
    nodes, edges = np.empty_like(unary), np.empty((1, 1, 3, 3))
    arrays = unary - unary.max(-1, keepdims=True), np.array([4000]), tables / tables.max(), (0, 0)
    log_partition = chains.marginals(*arrays, nodes, edges)
    assert np.isfinite(log_partition).all()
    np.testing.assert_allclose(nodes.sum(-1), 1)
    np.testing.assert_allclose(edges.sum(), 3999)


def test_long_chains_neither_vanish_nor_overflow_in_the_kernel(monkeypatch):
    energy = random_chain_energy(0, max_length=4000, num_states=3, batch_size=2, scale=5.0, ragged=False)
    found = chain_dp.marginals(energy)
    monkeypatch.setattr(chain_steps, "compiled", lambda *_: None)
    expected = chain_dp.marginals(energy)
    for name in ("states", "edges", "log_partition"):
        torch.testing.assert_close(getattr(found, name), getattr(expected, name))
