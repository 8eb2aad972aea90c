from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from lmbm_torch.energies import ChainEnergy
from lmbm_torch.inference import chain_dp
from lmbm_torch.solvers import chain_likelihood
from lmbm_torch.solvers.chain_likelihood import (
    ChainLikelihood,
    ChainMarginalPair,
    exponentiated_step,
    line_search_step,
)
from lmbm_torch.solvers.gram import PrecomputedGram
from lmbm_torch.solvers.kernels import rbf

STEPS = [line_search_step, exponentiated_step]


def small_problem(seed, lengths=(1, 3, 2, 4), states=3, C=2.0, width=3):
    generator = torch.Generator().manual_seed(seed)
    positions = sum(lengths)
    features = torch.randn(positions, width, generator=generator, dtype=torch.float64)
    labels = torch.randint(states, (positions,), generator=generator)
    upper = C * (0.5 + torch.rand(len(lengths), generator=generator, dtype=torch.float64))
    gram = PrecomputedGram(features @ features.mT)
    return ChainLikelihood(gram, labels, torch.tensor(lengths), upper, states), features


def by_lbfgs(problem, features):
    """The primal optimum, by gradients through enumeration of every labelling."""
    states, width = problem.num_states, features.shape[1]
    tables = [
        torch.tensor(list(product(range(states), repeat=len(features[span])))) for span in problem.spans
    ]

    def objective(flat):
        weights = torch.tensor(flat, requires_grad=True)
        unary = features @ weights[: width * states].view(width, states)
        transition = weights[width * states :].view(states, states)
        value = 0.5 * weights.square().sum()
        for span, labellings, upper in zip(problem.spans, tables, problem.upper, strict=True):
            own = unary[span]
            every = torch.cat([labellings, problem.labels[span][None]])
            scores = own[torch.arange(len(own)), every].sum(1)
            scores = scores + transition[every[:, :-1], every[:, 1:]].sum(1)
            value = value + upper * (scores[:-1].logsumexp(0) - scores[-1])
        (gradient,) = torch.autograd.grad(value, weights)
        return float(value.detach()), gradient.numpy()

    start = np.zeros(width * states + states**2)
    return minimize(objective, start, jac=True, method="L-BFGS-B", options={"ftol": 1e-15, "gtol": 1e-9})


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("C", [0.05, 5.0])
def test_the_optimum_is_that_of_primal_maximum_likelihood(step, C):
    problem, features = small_problem(0, C=C)
    state = chain_likelihood.run(problem, step=step, tol=1e-8, max_passes=3000)
    assert state.gap <= 1e-8
    found = by_lbfgs(problem, features)
    assert state.primal == pytest.approx(found.fun, rel=1e-7)
    assert state.dual <= found.fun * (1 + 1e-9)
    weights = torch.cat([(features.mT @ state.coef).flatten(), state.transition.flatten()])
    np.testing.assert_allclose(weights.numpy(), found.x, atol=2e-3)


@pytest.mark.parametrize("step", STEPS)
def test_the_dual_climbs_and_a_kernel_serves_as_well(step):
    problem, features = small_problem(1, lengths=(4, 2, 5))
    problem = ChainLikelihood(
        PrecomputedGram(rbf(features, features, 0.3)), problem.labels, problem.lengths, problem.upper, 3
    )
    duals = []
    state = chain_likelihood.run(problem, step=step, tol=1e-7, callback=lambda each: duals.append(each.dual))
    assert state.gap <= 1e-7
    assert len(duals) > 2
    assert (np.diff(duals) > -1e-10 * abs(duals[-1])).all()


def test_marginals_stay_those_of_one_distribution():
    problem, _ = small_problem(2)
    state = chain_likelihood.update(problem, chain_likelihood.init(problem), seed=3)
    for each in state.marginals:
        torch.testing.assert_close(each.edges.sum(2), each.nodes[:-1], atol=1e-12, rtol=0)
        torch.testing.assert_close(each.edges.sum(1), each.nodes[1:], atol=1e-12, rtol=0)
        energy = each.energy()
        again = chain_dp.marginals(energy)
        torch.testing.assert_close(again.nodes[0], each.nodes)
        assert float(chain_dp.entropy(energy)) == pytest.approx(each.entropy(), abs=1e-12)
    resumed = chain_likelihood.update(problem, state, seed=3)
    twice = chain_likelihood.run(problem, tol=1e-14, max_passes=2, seed=3)
    assert resumed.dual == twice.dual


def test_the_gap_is_a_sum_of_divergences():
    problem, _ = small_problem(3)
    state = chain_likelihood.update(problem, chain_likelihood.init(problem))
    total = 0.0
    for span, upper, each in zip(problem.spans, problem.upper.tolist(), state.marginals, strict=True):
        unary = problem.gram.rows(span) @ state.coef
        model, own = ChainEnergy(unary[None], state.transition), each.energy()
        length = len(unary)
        every = torch.tensor(list(product(range(3), repeat=length)))
        log_own, log_model = own.score(every[:, None])[:, 0], model.score(every[:, None])[:, 0]
        log_model = log_model - log_model.logsumexp(0)
        total += upper * float((log_own.exp() * (log_own - log_model)).sum())
    assert state.primal - state.dual == pytest.approx(total, rel=1e-8)


def test_bad_problems_are_refused():
    problem, _ = small_problem(0)
    gram, labels, lengths, upper = problem.gram, problem.labels, problem.lengths, problem.upper
    with pytest.raises(ValueError, match="lengths: expected at least 1 and 10 in all"):
        ChainLikelihood(gram, labels, lengths + 1, upper, 3)
    with pytest.raises(ValueError, match="labels: expected 0 to 1"):
        ChainLikelihood(gram, labels, lengths, upper, 2)
    with pytest.raises(ValueError, match="upper: expected values above 0"):
        ChainLikelihood(gram, labels, lengths, 0 * upper, 3)
    with pytest.raises(ValueError, match="tol"):
        chain_likelihood.run(problem, tol=0.0)
    assert isinstance(chain_likelihood.init(problem).marginals[0], ChainMarginalPair)
