from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import brentq
from scipy.special import expit

from lmbm_torch.kernels.dual import logistic
from lmbm_torch.references import logistic_dual, logistic_primal
from lmbm_torch.solvers import gram as kernels
from lmbm_torch.solvers import smo
from lmbm_torch.solvers.base import run
from lmbm_torch.solvers.gram import CachedGram, PrecomputedGram
from lmbm_torch.solvers.smo import JointProblem, MulticlassProblem


def random_problem(seed, instances=25, classes=4, C=3.0, rank=6):
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(instances, rank, generator=generator, dtype=torch.float64)
    labels = torch.randint(classes, (instances,), generator=generator)
    targets = torch.nn.functional.one_hot(labels, classes).double()
    upper = C * (0.5 + torch.rand(instances, generator=generator, dtype=torch.float64))
    return MulticlassProblem(PrecomputedGram(features @ features.mT), targets, upper), features


def as_joint(problem):
    classes = problem.targets.shape[1]
    same = torch.eye(classes, dtype=torch.float64)
    matrix = torch.einsum("ij,yz->iyjz", problem.gram.matrix, same)
    return JointProblem(matrix, problem.targets, problem.upper)


def random_joint(seed, instances=8, classes=3):
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(instances, classes, 5, generator=generator, dtype=torch.float64)
    targets = torch.rand(instances, classes, generator=generator, dtype=torch.float64)
    upper = 2 * torch.rand(instances, generator=generator, dtype=torch.float64) + 0.1
    matrix = torch.einsum("iyf,jzf->iyjz", features, features)
    return JointProblem(matrix, targets / targets.sum(1, keepdim=True), upper), features


def arrays(first, problem):
    return [each.numpy() for each in (first, problem.targets, problem.upper)]


@pytest.mark.parametrize("C", [0.01, 1.0, 300.0])
@pytest.mark.parametrize("seed", range(3))
def test_objective_is_that_of_a_convex_solver(seed, C):
    problem, features = random_problem(seed, instances=12, classes=3, C=C, rank=3)
    classes = torch.eye(3, dtype=torch.float64)
    joint_features = torch.einsum("if,yz->iyfz", features, classes).flatten(2)
    state = run(smo, problem, tol=1e-9)
    assert state.gap <= 1e-9
    expected, _ = logistic_primal(*arrays(joint_features, problem))
    assert state.primal == pytest.approx(expected, rel=1e-6)
    assert state.dual <= expected * (1 + 1e-7)


@pytest.mark.parametrize("seed", range(5))
def test_any_joint_kernel_and_soft_targets(seed):
    problem, features = random_joint(seed)
    state = run(smo, problem, tol=1e-9)
    assert state.gap <= 1e-9
    expected, _ = logistic_primal(*arrays(features, problem))
    assert state.primal == pytest.approx(expected, rel=1e-6)
    dual, probabilities = logistic_dual(*arrays(problem.matrix, problem))
    assert dual == pytest.approx(expected, rel=1e-6)
    np.testing.assert_allclose(probabilities, state.probabilities, atol=1e-4)


@pytest.mark.parametrize("seed", range(5))
def test_two_classes_at_a_time_reach_what_all_at_once_do(seed):
    problem, _ = random_problem(seed)
    together, in_pairs = (run(smo, each, tol=1e-10) for each in (problem, as_joint(problem)))
    torch.testing.assert_close(in_pairs.probabilities, together.probabilities, atol=1e-4, rtol=0)
    assert in_pairs.primal == pytest.approx(together.primal, rel=1e-9)


def test_unconditional_maximum_likelihood():
    """Without a penalty to speak of, the model repeats the samples' frequencies."""
    target = torch.tensor([[0.5, 0.3, 0.2]], dtype=torch.float64)
    features = torch.eye(3, dtype=torch.float64)[None]
    matrix = torch.einsum("iyf,jzf->iyjz", features, features)
    state = run(smo, JointProblem(matrix, target, torch.tensor([1e6], dtype=torch.float64)), tol=1e-12)
    torch.testing.assert_close(state.probabilities, target, atol=1e-5, rtol=0)
    scores = torch.einsum("iyjz,jz->iy", matrix, state.coef)
    torch.testing.assert_close(scores.softmax(-1), target, atol=1e-5, rtol=0)


def test_each_share_of_the_gap_is_a_divergence():
    problem, _ = random_problem(1)
    state = smo.update(problem, smo.init(problem), num_iters=1)
    scores = problem.gram.matrix @ state.coef
    alpha = state.probabilities
    expected = problem.upper * (alpha * (alpha.log() - scores.log_softmax(-1))).sum(-1)
    torch.testing.assert_close(state.divergences, expected, atol=1e-10, rtol=1e-6)
    norm = (state.coef * scores).sum()
    entropy = -(problem.upper * (alpha * alpha.log()).sum(-1)).sum()
    assert state.dual == pytest.approx(float(entropy - 0.5 * norm), rel=1e-10)


def test_the_dual_climbs_and_rounds_may_be_made_in_any_portions():
    problem, _ = random_problem(2, instances=150)
    state, values = smo.init(problem), []
    for _ in range(6):
        state = smo.update(problem, state, num_iters=1, seed=5)
        values.append(state.dual)
    assert (np.diff(values) > -1e-9 * abs(values[-1])).all()
    again = smo.init(problem)
    for _ in range(6):
        again = smo.update(problem, again, num_iters=1, seed=5)
    torch.testing.assert_close(again.probabilities, state.probabilities, atol=0, rtol=0)
    resumed = run(smo, problem, tol=1e-8, start=smo.init(problem, state.probabilities))
    assert resumed.gap <= 1e-8


@pytest.mark.parametrize("cache_bytes", [0, 8 * 25 * 10, 2**20])
def test_rows_may_be_evaluated_on_demand(cache_bytes):
    problem, features = random_problem(3)
    asked = []

    def kernel(rows, columns):
        asked.extend(torch.arange(25)[rows].tolist())
        return features[rows] @ features[columns].mT

    gram = CachedGram(kernel, len(features), cache_bytes)
    for index in (torch.tensor([3, 7, 1]), torch.tensor([7, 20, 3, 0]), torch.arange(25)):
        torch.testing.assert_close(gram.rows(index), problem.gram.matrix[index])
    kept = min(cache_bytes // (8 * 25), 25)
    asked.clear()
    gram.rows(torch.arange(25))
    assert len(asked) == 25 - kept
    state = run(smo, MulticlassProblem(gram, problem.targets, problem.upper), tol=1e-9)
    assert state.primal == pytest.approx(run(smo, problem, tol=1e-9).primal, rel=1e-8)


def test_a_single_precision_kernel_serves_a_moderate_gap():
    problem, features = random_problem(4, instances=80)
    single = PrecomputedGram((features @ features.mT).float())
    state = run(smo, MulticlassProblem(single, problem.targets, problem.upper), tol=1e-4)
    assert state.primal == pytest.approx(run(smo, problem, tol=1e-8).primal, rel=1e-3)


@pytest.mark.parametrize("curvature", [0.0, 1e-9, 0.3, 40.0, 1e7])
@pytest.mark.parametrize("scale", [0.1, 10.0, 500.0])
def test_one_instance_is_solved_exactly_at_every_scale(curvature, scale):
    generator = np.random.default_rng(0)
    linear = scale * generator.standard_normal(5)
    for start in (np.full(5, 0.2), np.array([1 - 4e-200, *[1e-200] * 4])):
        found = start.copy()
        logistic._simplex_step(linear, curvature, found)
        assert found.sum() == pytest.approx(1, abs=1e-12)
        multiplier = linear - curvature * found - np.log(found)
        inside = found > 1e-250
        spread = np.ptp(multiplier[inside])
        assert spread <= 1e-8 * max(1.0, np.abs(linear).max(), curvature)


@pytest.mark.parametrize("difference", [-300.0, -1.0, 0.0, 2.0, 800.0])
@pytest.mark.parametrize("curvature", [0.0, 0.5, 1e6])
@pytest.mark.parametrize("start", [1e-300, 0.1, 0.6 - 1e-16])
def test_a_pair_is_solved_exactly_at_every_scale(difference, curvature, start):
    total = 0.6
    share = logistic._pair_share(difference, curvature, total, start)
    root = brentq(lambda u: u + curvature * (total * expit(u) - start) - difference, -2e6, 2e6, xtol=1e-14)
    assert share == pytest.approx(expit(root), rel=1e-6, abs=1e-300)


def test_bad_problems_are_refused():
    problem, _ = random_problem(0)
    gram, targets, upper = problem.gram, problem.targets, problem.upper
    with pytest.raises(ValueError, match="targets: expected distributions"):
        MulticlassProblem(gram, 2 * targets, upper)
    with pytest.raises(ValueError, match="upper: expected values above 0"):
        MulticlassProblem(gram, targets, 0 * upper)
    with pytest.raises(ValueError, match=r"torch\.float64, got torch\.float32"):
        MulticlassProblem(gram, targets.float(), upper)
    with pytest.raises(ValueError, match=r"targets: expected shape \(25"):
        MulticlassProblem(gram, targets[:7], upper[:7])
    with pytest.raises(ValueError, match="symmetric"):
        PrecomputedGram(torch.tensor([[1.0, 0.5], [0.0, 1.0]]))
    with pytest.raises(ValueError, match="matrix: expected finite values, got 1 NaN"):
        PrecomputedGram(torch.tensor([[float("nan")]]))
    with pytest.raises(ValueError, match="probabilities: expected positive entries"):
        smo.init(problem, torch.zeros_like(targets))
    with pytest.raises(ValueError, match="tol"):
        run(smo, problem, tol=0.0)
    with pytest.raises(ValueError, match="num_instances"):
        CachedGram(lambda rows, columns: rows, 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_values_of_the_rbf_kernel_that_underflow_are_zero(dtype):
    distances = torch.tensor([0.0, 1.0, 9.0, 12.0, 26.0, 40.0], dtype=dtype)[:, None]
    expected = torch.exp(-distances[:, 0].square())
    expected[expected < 4 * torch.finfo(dtype).tiny] = 0
    found = kernels.rbf(distances, torch.zeros(1, 1, dtype=dtype), 1.0)[:, 0]
    torch.testing.assert_close(found, expected, rtol=1e-3 if dtype == torch.float32 else 1e-10, atol=0)
    assert 0 < (expected == 0).sum() < 4
