"""Structural SVMs whose labellings are summed: the optimum and the bounds of Frank–Wolfe's problem."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from references.slopes import relative_error

from lmbm_torch.inference.enumeration import exact
from lmbm_torch.solvers.base import run
from lmbm_torch.solvers.chains.problems import chain_problem
from lmbm_torch.solvers.structural import frank_wolfe, smoothing
from lmbm_torch.solvers.structural.label_vectors import LabelMargins, label_vector_problem
from lmbm_torch.solvers.structural.smoothing import SmoothedProblem


def both(seed, *, labels=4, rows=30, pairs=None, with_costs=False, **settings):
    """Frank–Wolfe's problem, and the one whose labellings are summed."""
    random = np.random.default_rng(seed)
    features = random.normal(size=(rows, 3))
    target = (features @ random.normal(size=(3, labels)) + random.normal(size=(rows, labels)) > 0).astype(int)
    costs = random.random((rows, labels)) + 0.5 if with_costs else None
    pairs = list(combinations(range(labels), 2)) if pairs is None else pairs
    weight = random.random(rows) * (np.arange(rows) % 7 > 0)
    cutting = label_vector_problem(
        features, target, exact.decode, pairs=pairs, costs=costs, sample_weight=weight, **settings
    )
    return cutting, LabelMargins.of(cutting)


@pytest.mark.parametrize("with_costs", [False, True])
@pytest.mark.parametrize(("labels", "pairs"), [(1, []), (4, None), (4, [(0, 2), (3, 1)]), (5, [])])
@pytest.mark.parametrize("C", [0.1, 3.0])
def test_every_bound_holds_and_the_optimum_is_that_of_frank_wolfe(labels, pairs, with_costs, C):
    options = {"labels": labels, "pairs": pairs, "with_costs": with_costs}
    cutting, summed = both(labels, C=C, coupling_penalty=0.4, **options)
    states = []
    last = run(smoothing, summed, tol=1e-5, max_iter=5000, callback=states.append)
    assert last.gap <= 1e-5
    other = run(frank_wolfe, cutting, tol=1e-5, max_iter=2000)
    assert max(last.dual, other.dual) <= min(last.primal, other.primal) * (1 + 1e-9)
    for state in states:
        objective = cutting.primal(state.weights, cutting.maximisers(state.weights).bound)
        assert state.primal == pytest.approx(objective, rel=1e-9)
        assert state.dual <= last.primal


@pytest.mark.parametrize("temperature", [1.0, 0.1])
def test_the_gradient_is_that_of_finite_differences(temperature):
    _, summed = both(0, C=2.0, coupling_penalty=0.5, with_costs=True)
    problem = SmoothedProblem(summed, temperature)
    flat = 0.3 * np.random.default_rng(1).normal(size=problem.num_weights) / temperature
    assert relative_error(problem.value_and_gradient, flat) <= 1e-5


def test_a_run_goes_on_with_another_penalty():
    _, first = both(0, C=1.0)
    _, second = both(0, C=1.2)
    state = run(smoothing, first, tol=1e-3, max_iter=1000)
    start = smoothing.resumed(second, state)
    anew = run(smoothing, second, tol=1e-3, max_iter=1000)
    again = run(smoothing, second, tol=1e-3, max_iter=1000, start=start)
    assert again.gap <= 1e-3
    assert again.num_iters < anew.num_iters
    assert again.primal == pytest.approx(anew.primal, rel=2e-3)


def test_other_outputs_are_refused():
    chains = chain_problem(np.ones((2, 1)), np.array([0, 1]), [0, 2], num_states=2)
    with pytest.raises(TypeError, match="label vectors, got ChainOracle"):
        LabelMargins.of(chains)
