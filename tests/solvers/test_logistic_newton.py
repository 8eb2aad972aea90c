"""Newton's method where the kernel is of low rank: it finishes what passes over instances crawl towards."""

from __future__ import annotations

import pytest
import torch

from lmbm_torch.solvers import gram as kernels
from lmbm_torch.solvers import smo
from lmbm_torch.solvers.base import run
from lmbm_torch.solvers.gram import CachedGram, PrecomputedGram
from lmbm_torch.solvers.smo import MulticlassProblem


def random_problem(seed, instances=60, classes=4, C=1e4, rank=5, dtype=torch.float64):
    """Classes that linear scores explain in part; weights C that make passes crawl."""
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(instances, rank, generator=generator, dtype=torch.float64)
    scores = features @ torch.randn(rank, classes, generator=generator, dtype=torch.float64)
    labels = (scores + torch.randn(scores.shape, generator=generator)).argmax(1)
    targets = torch.nn.functional.one_hot(labels, classes).double()
    upper = C * (0.5 + torch.rand(instances, generator=generator, dtype=torch.float64))
    return MulticlassProblem(PrecomputedGram((features @ features.mT).to(dtype)), targets, upper), features


def test_a_factor_has_the_rank_of_its_kernel_and_no_more():
    problem, features = random_problem(0, rank=7)
    factor = smo.low_rank_factor(problem.gram, 20)
    assert factor is not None
    assert factor.shape == (60, 7)
    torch.testing.assert_close(factor @ factor.mT, features @ features.mT)
    assert smo.low_rank_factor(problem.gram, 6) is None
    full = smo.low_rank_factor(PrecomputedGram(kernels.rbf(features, features, 1.0)), 60)
    assert full is not None
    assert full.shape == (60, 60)


def test_a_factor_needs_rows_of_the_kernel_alone():
    _, features = random_problem(1, instances=600, rank=3)
    gram = CachedGram(lambda rows, columns: features[rows] @ features[columns].mT, 600, 10 * 600 * 8)
    factor = smo.low_rank_factor(gram, 10)
    assert factor is not None
    torch.testing.assert_close(factor @ factor.mT, features @ features.mT)


def test_no_dimension_is_too_few():
    problem, _ = random_problem(2)
    nothing = PrecomputedGram(torch.zeros(60, 60, dtype=torch.float64))
    factor = smo.low_rank_factor(nothing, 5)
    assert factor is not None
    assert factor.shape == (60, 0)
    found = smo.maximise(factor, problem.targets, problem.upper)
    torch.testing.assert_close(found, torch.full_like(found, 0.25))


@pytest.mark.parametrize("C", [1.0, 1e3, 1e6])
def test_what_it_finds_is_the_optimum(C):
    problem, features = random_problem(3, C=C)
    factor = smo.low_rank_factor(problem.gram, 20)
    assert factor is not None
    found = smo.init(problem, smo.maximise(factor, problem.targets, problem.upper))
    assert found.gap <= 1e-9
    assert _gradient(problem, features, features.mT @ found.coef) <= 1e-5 * _gradient(
        problem, features, torch.zeros(5, 4, dtype=torch.float64)
    )


def _gradient(problem, features, weights):
    """The norm of the primal objective's gradient."""
    weights = weights.clone().requires_grad_()
    losses = -(problem.targets * (features @ weights).log_softmax(-1)).sum(-1)
    value = 0.5 * weights.square().sum() + problem.upper @ losses
    return float(torch.autograd.grad(value, weights)[0].norm())


def test_a_run_that_crawls_is_finished():
    problem, _ = random_problem(4)
    crawling = smo.update(problem, smo.init(problem), num_iters=smo.NEWTON_AFTER)
    assert crawling.gap > 0.1
    state = run(smo, problem, tol=1e-9)
    assert state.gap <= 1e-9
    assert state.num_iters == smo.NEWTON_AFTER
    assert state.dual > crawling.dual


def test_a_kernel_of_full_rank_that_is_too_large_goes_on_as_before(monkeypatch):
    problem, _ = random_problem(5, C=30.0)
    monkeypatch.setattr(smo, "MOST_WORK", 1.0)
    crawling = smo.update(problem, smo.init(problem), num_iters=smo.NEWTON_AFTER)
    assert smo.finish(problem, crawling) is crawling
    assert run(smo, problem, tol=1e-6).num_iters > smo.NEWTON_AFTER


def test_single_precision_kernels_are_no_worse_for_it():
    problem, _ = random_problem(6, C=100.0, dtype=torch.float32)
    state = smo.update(problem, smo.init(problem), num_iters=4)
    after = smo.finish(problem, state)
    assert after.dual >= state.dual
    assert after.gap < 1e-3


@pytest.mark.usefixtures("no_shape_checks")
def test_states_of_other_problems_are_refused():
    problem, _ = random_problem(7)
    other, _ = random_problem(7, instances=30)
    with pytest.raises(ValueError, match="probabilities"):
        smo.finish(problem, smo.init(other))


@pytest.mark.parametrize("size", [1e3, 1e6, 1e9])
def test_weights_that_hide_the_penalty_in_round_off_are_no_obstacle(size):
    column = size * torch.tensor([1, 0, 2, 1, 1.5, 0.3], dtype=torch.float64)[:, None]
    targets = torch.eye(2, dtype=torch.float64)[[0, 1, 0, 1, 0, 1]]
    upper = torch.full((6,), 1e4, dtype=torch.float64)
    # The same kernel from collinear columns, whose Hessian is singular but for the penalty.
    several = column * torch.tensor([1 / 3, 2 / 3, 2 / 3], dtype=torch.float64)
    found = smo.maximise(several, targets, upper)
    torch.testing.assert_close(found, smo.maximise(column, targets, upper), rtol=1e-4, atol=1e-6)
