"""Iterative scaling: the likelihood never falls, and ends where L-BFGS ends."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse
from sweeps import slow

from lmbm_torch.solvers.base import run
from lmbm_torch.solvers.chains import iterative_scaling
from lmbm_torch.solvers.chains.linear import LikelihoodProblem
from lmbm_torch.solvers.structural import lbfgs


def counted_problem(seed=0, *, csr=False, **settings):
    """Labels so loosely tied to features that the likelihood has a largest value."""
    random = np.random.default_rng(seed)
    start = np.concatenate([[0], random.integers(1, 4, 60).cumsum()])
    features = random.integers(0, 2, (start[-1], 2)).astype(np.float64)
    labels = np.where(random.random(start[-1]) < 0.5, features[:, 0], random.integers(0, 3, start[-1]))
    rows = sparse.csr_array(features) if csr else features
    return LikelihoodProblem(rows, labels.astype(np.int64), start, 3, **settings)


@pytest.mark.parametrize("csr", [True, slow(False)])
def test_the_likelihood_never_falls_and_ends_where_l_bfgs_ends(csr):
    problem = counted_problem(csr=csr)
    states = [iterative_scaling.init(problem)]
    end = run(iterative_scaling, problem, tol=1e-4, max_iter=3000, callback=states.append)
    assert end.gap <= 1e-4
    losses = [state.loss for state in states]
    assert (np.diff(losses) <= 1e-9).all()
    # With so large a weight on the losses little is left of regularisation.
    best = run(lbfgs, counted_problem(csr=csr, C=1e4), tol=1e-8)
    best_loss = (best.objective - 0.5 * best.flat @ best.flat) / 1e4
    assert end.loss == pytest.approx(best_loss, rel=1e-4)
    assert end.weights.features.shape == (3, 3)


def test_a_chain_of_weight_two_counts_as_two():
    problem = counted_problem(sample_weight=np.full(60, 2.0))
    once = run(iterative_scaling, counted_problem(), tol=1e-9, max_iter=20)
    twice = run(iterative_scaling, problem, tol=1e-9, max_iter=20)
    np.testing.assert_allclose(twice.flat, once.flat)
    assert twice.loss == pytest.approx(2 * once.loss)


def test_features_that_never_occur_with_a_state_are_left_out():
    problem = counted_problem()
    features = np.column_stack([problem.features, problem.labels == 1])
    end = run(
        iterative_scaling,
        LikelihoodProblem(features, problem.labels, problem.start, 3),
        tol=1e-2,
        max_iter=50,
    )
    assert (end.weights.features[[0, 2], 2] == 0).all()
    assert end.weights.features[1, 2] > 0


def test_refuses_negative_features():
    problem = counted_problem()
    negative = LikelihoodProblem(-problem.features, problem.labels, problem.start, 3)
    with pytest.raises(ValueError, match=r"^features: expected counts of at least 0, got -1"):
        iterative_scaling.init(negative)
