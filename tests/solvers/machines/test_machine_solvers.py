"""Both solvers of a Boltzmann machine's hinge problem: against convex programmes, and what they promise."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from scipy import sparse
from sklearn.svm import LinearSVC
from strategies.label_problems import random_inputs
from strategies.shared_problems import FORMS, random_shared_problem, shared_problems

from lmbm_torch.losses import local_hinge
from lmbm_torch.models import BoltzmannMachine
from lmbm_torch.references import machine_dual, machine_primal
from lmbm_torch.solvers.base import run
from lmbm_torch.solvers.machines import dual_coordinate as shared_dual_coordinate
from lmbm_torch.solvers.machines import problem as machine_problem
from lmbm_torch.solvers.machines import proximal_newton
from lmbm_torch.solvers.machines.dual_coordinate import SharedState
from lmbm_torch.solvers.machines.problem import SharedProblem
from lmbm_torch.solvers.networks import dual_coordinate
from lmbm_torch.solvers.networks.problems import LabelProblems

SOLVERS = {"dual coordinate": shared_dual_coordinate, "proximal Newton": proximal_newton}
every_solver = pytest.mark.parametrize("solver", SOLVERS.values(), ids=SOLVERS.keys())

# Twenty problems: every form of cliques at penalties from 0.5 to 1000, dense and CSR, and settings at large.
CASES = [
    {"form": form, "coupling_penalty": penalty, "csr": csr}
    for form, csr in zip(FORMS, (False, True, False, True, True), strict=True)
    for penalty in (0.5, 10.0, 1000.0)
] + [
    {"weighted": True, "C": 3.0},
    {"bias": False, "margin": 2.5, "form": "mixed"},
    {"C": 30.0, "coupling_penalty": 0.5, "num_features": 2},
    {"instances": 6, "num_features": 12, "C": 10.0},
    {"num_labels": 1, "weighted": True},
]


def check_certificate(problem: SharedProblem, state: SharedState) -> None:
    """Duals in their box, and weights and both values what the duals make them."""
    assert (state.dual_coef >= 0).all()
    assert (state.dual_coef <= problem.upper).all()
    weights = problem.weights(state.dual_coef)
    for ours, expected in zip(state.weights, weights, strict=True):
        np.testing.assert_allclose(ours, expected, atol=1e-12)
    assert state.primal == pytest.approx(problem.primal(weights))
    assert state.dual == pytest.approx(problem.dual(state.dual_coef, weights))
    assert state.dual <= state.primal * (1 + 1e-12)


@every_solver
@pytest.mark.parametrize("case", range(len(CASES)))
def test_objective_is_that_of_the_convex_programmes(solver, case):
    problem = random_shared_problem(case, **CASES[case])
    state = run(solver, problem, tol=1e-6, max_iter=3000)
    assert state.gap <= 1e-6
    check_certificate(problem, state)
    best, weights = machine_primal(problem)
    assert state.primal == pytest.approx(best, rel=1e-5)
    assert machine_dual(problem)[0] == pytest.approx(best, rel=1e-7)
    # The objective is strongly convex, so an objective this close leaves the weights no room either.
    for ours, theirs in zip(state.weights, weights, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=(2e-6 * best) ** 0.5)


@pytest.mark.parametrize("case", [0, 4, 15, 16])
def test_little_memory_changes_no_answer(monkeypatch, case):
    expected = run(proximal_newton, random_shared_problem(case, **CASES[case]), tol=1e-8, max_iter=3000)
    monkeypatch.setattr(machine_problem, "KEPT_CONTEXT_BYTES", 0)
    monkeypatch.setattr(machine_problem, "BLOCK_PRODUCTS", 20)
    problem = random_shared_problem(case, **CASES[case])
    state = run(proximal_newton, problem, tol=1e-8, max_iter=3000)
    assert not problem._contexts
    check_certificate(problem, state)
    for ours, theirs in zip(state.weights, expected.weights, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-4)


@every_solver
@given(problem=shared_problems())
@settings(max_examples=12)
def test_certificate_is_true_after_one_pass(solver, problem):
    state = solver.update(problem, solver.init(problem))
    check_certificate(problem, state)
    assert state.dual >= 0
    best, _ = machine_primal(problem)
    assert state.dual <= best * (1 + 1e-7) <= state.primal * (1 + 2e-7) + 1e-20


@every_solver
def test_machine_without_cliques_is_independent_machines(solver):
    problem = random_shared_problem(3, form="independent", instances=60)
    state = run(solver, problem, tol=1e-7, max_iter=1000)
    labels = (problem.spins.T + 1) // 2
    alone = run(dual_coordinate, LabelProblems.from_labels(problem.features, labels, parents=False), tol=1e-9)
    assert state.primal == pytest.approx(alone.primal.sum(), rel=1e-6)
    np.testing.assert_allclose(state.weights.features, alone.weights[:5], atol=1e-2)
    peer = LinearSVC(loss="hinge", tol=1e-9, max_iter=10**6, random_state=0).fit(
        problem.features, labels[:, 0]
    )
    np.testing.assert_allclose(state.weights.features[:-1, 0], peer.coef_[0], atol=1e-2)


@every_solver
@pytest.mark.parametrize("form", FORMS)
def test_weights_are_those_of_the_model(solver, form):
    problem = random_shared_problem(5, form=form)
    state = run(solver, problem, max_iter=5)
    model = BoltzmannMachine(4, 4, problem.cliques).double()
    features, cliques = map(torch.from_numpy, state.weights)
    model.assign(features[:-1].mT, features[-1], cliques)
    labels = torch.from_numpy((problem.spins.T + 1) // 2)
    energy = model(torch.from_numpy(problem.features))
    np.testing.assert_allclose(
        energy.local_margins(labels).detach(), problem.margins(state.weights), atol=1e-12
    )
    hinge = problem.hinge(state.weights).sum(1)
    np.testing.assert_allclose(local_hinge(energy, labels).detach(), hinge, atol=1e-12)


@every_solver
def test_dense_csr_and_single_precision_have_one_optimum(solver):
    problem = random_shared_problem(6)
    single = np.asarray(problem.features, np.float32)
    labels = (problem.spins.T + 1) // 2
    values = [
        run(solver, SharedProblem.from_labels(rows, labels), tol=1e-4, max_iter=1000).primal
        for rows in (single, single.astype(np.float64), sparse.csr_array(single))
    ]
    np.testing.assert_allclose(values[1:], values[0], rtol=2e-4)


def test_update_by_update_is_as_run():
    problem = random_shared_problem(7, instances=50)
    for solver, seed in ((shared_dual_coordinate, {"seed": 3}), (proximal_newton, {})):
        seen = []
        whole = run(solver, problem, tol=1e-5, max_iter=20, **seed, callback=seen.append)
        state = solver.init(problem)
        for told in seen:
            state = solver.update(problem, state, **seed)
            np.testing.assert_array_equal(state.dual_coef, told.dual_coef)
        np.testing.assert_array_equal(state.dual_coef, whole.dual_coef)


def test_same_seed_same_result():
    problem = random_shared_problem(2, instances=50, num_labels=7)
    first, again, other = (
        run(shared_dual_coordinate, problem, tol=1e-4, seed=seed, max_iter=3) for seed in (3, 3, 4)
    )
    np.testing.assert_array_equal(again.dual_coef, first.dual_coef)
    assert not np.array_equal(other.dual_coef, first.dual_coef)


@every_solver
def test_warm_start_begins_at_the_given_duals(solver):
    problem = random_shared_problem(8)
    solved = run(solver, problem, tol=1e-5, max_iter=5000)
    again = run(solver, problem, tol=1e-5, start=solver.init(problem, solved.dual_coef))
    assert again.num_iters == 0
    np.testing.assert_array_equal(again.dual_coef, solved.dual_coef)


@every_solver
def test_bad_calls_are_refused_by_name(solver):
    problem = random_shared_problem(0)
    for message, call in {
        "tol: expected": lambda: run(solver, problem, tol=0.0),
        "max_iter: expected": lambda: run(solver, problem, max_iter=0),
        "dual_coef: expected shape": lambda: solver.init(problem, np.zeros((3, 25))),
        "dual_coef: expected 0 to C": lambda: solver.init(problem, np.full((4, 25), 1.1)),
        "state.dual_coef: expected shape": lambda: solver.update(
            problem, solver.init(random_shared_problem(0, instances=5))
        ),
    }.items():
        with pytest.raises(ValueError, match=message):
            call()


@pytest.mark.parametrize(
    ("message", "arguments"),
    [
        ("coupling_penalty: expected a finite number above 0", {"coupling_penalty": 0.0}),
        ("C: expected", {"C": -1.0}),
        ("margin: expected", {"margin": 0.0}),
        ("labels: expected 0 or 1, got 1 other values", {"labels": np.array([[np.nan, 1], [0, 1]])}),
        ("labels: expected shape", {"labels": np.ones((3, 2))}),
        ("features: expected finite", {"features": np.array([[np.inf], [0]])}),
        ("sample_weight: expected no negative", {"sample_weight": np.array([-1.0, 1])}),
        ("clique_features: expected features below 1", {"cliques": [(0, 1)], "clique_features": [1]}),
        ("cliques: expected distinct labels below 2", {"cliques": [(0, 2)]}),
    ],
)
def test_bad_problems_are_refused_by_name(message, arguments):
    good = {"features": np.ones((2, 1)), "labels": np.ones((2, 2))}
    with pytest.raises(ValueError, match=message):
        SharedProblem.from_labels(**{**good, **arguments})


def test_instances_of_no_weight_play_no_part():
    problem = random_shared_problem(4)
    upper = problem.upper.copy()
    upper[::2] = 0
    without = SharedProblem.from_labels(
        problem.features[1::2], (problem.spins.T[1::2] + 1) // 2, coupling_penalty=10
    )
    for solver in SOLVERS.values():
        ours = run(solver, replace(problem, upper=upper), tol=1e-6, max_iter=5000)
        assert ours.primal == pytest.approx(run(solver, without, tol=1e-6, max_iter=5000).primal, rel=1e-5)


def test_duals_that_fall_together_without_moving_a_weight_are_not_taken():
    # Equal rows with opposite labels: their duals cancel, and the dual is their sum.
    features, labels = np.zeros((2, 1)), np.array([[0.0], [1.0]])
    problem = SharedProblem.from_labels(features, labels, cliques=(), C=10.0, margin=0.3)
    state = proximal_newton.init(problem, np.full((1, 2), 5.0))
    between = proximal_newton._between(problem, state, np.full((1, 2), 4.0))
    np.testing.assert_array_equal(between, state.dual_coef)
    np.testing.assert_array_equal(
        proximal_newton._between(problem, state, np.full((1, 2), 6.0)), np.full((1, 2), 6.0)
    )


def test_newton_steps_that_rounding_has_stopped_are_not_repeated(monkeypatch):
    features, labels = random_inputs(0, 12, 3, 3)
    problem = SharedProblem.from_labels(features * [1, 1e3, 1e-3], labels, C=1e5)
    steps, direction = [], proximal_newton._newton_direction
    monkeypatch.setattr(proximal_newton, "_newton_direction", lambda *a: steps.append(0) or direction(*a))
    # Without the end by interior points.
    monkeypatch.setattr(proximal_newton, "PATIENCE", 100)
    monkeypatch.setattr(proximal_newton, "_finished", lambda problem, state, tol: state)
    states = [proximal_newton.init(problem)]
    for _ in range(40):
        states.append(proximal_newton.update(problem, states[-1]))
    assert len(steps) <= 12 * 40
    # Coordinate descent goes on where they cannot.
    duals = np.array([state.dual for state in states])
    assert (np.diff(duals) >= -1e-9 * np.abs(duals[1:])).all()
    assert duals[40] > 1.001 * duals[20]
    check_certificate(problem, states[-1])
