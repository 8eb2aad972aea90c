"""Interior points: the optimum of the convex programme, whatever the ranges of the columns."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from scipy import sparse

from lmbm_torch.estimators import LMBMClassifier, LMSBNClassifier
from lmbm_torch.references import hinge_primal
from lmbm_torch.solvers.interior_point import MatrixRows, ascend
from lmbm_torch.solvers.machines import proximal_newton
from lmbm_torch.solvers.machines.problem import SharedProblem
from lmbm_torch.solvers.networks import dual_coordinate
from lmbm_torch.solvers.networks.problems import LabelProblems


def rows_of(instances: int, columns: int, orders: float = 0.0, seed: int = 0) -> np.ndarray:
    """Signed rows whose columns' ranges differ by so many orders of magnitude."""
    random = np.random.default_rng(seed)
    ranges = 10.0 ** random.uniform(-orders / 2, orders / 2, columns)
    spins = random.choice([-1.0, 1.0], instances)
    return random.normal(size=(instances, columns)) * ranges * spins[:, None]


def values(rows: np.ndarray, upper: np.ndarray, margin: float, duals: np.ndarray) -> tuple[float, float]:
    weights = rows.T @ duals
    square = 0.5 * float(weights @ weights)
    losses = float(upper @ np.maximum(margin - rows @ weights, 0))
    return square + losses, margin * float(duals.sum()) - square


@pytest.mark.parametrize("shape", [(60, 5), (12, 30)], ids=["long", "wide"])
@pytest.mark.parametrize("C", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize("margin", [1.0, 0.2])
def test_the_optimum_is_that_of_the_convex_programme(shape, C, margin):
    rows = rows_of(*shape)
    upper = C * np.random.default_rng(1).uniform(0.5, 2, len(rows))
    duals = ascend(MatrixRows(rows), upper, margin, 1e-6)
    assert ((duals > 0) & (duals < upper)).all()
    best = hinge_primal(rows, np.ones(len(rows)), upper, margin=margin)[0]
    primal, dual = values(rows, upper, margin, duals)
    assert primal == pytest.approx(best, rel=1e-5)
    assert primal - dual <= 1e-6 * primal
    stored = ascend(MatrixRows(sparse.csr_array(rows)), upper, margin, 1e-6)
    assert values(rows, upper, margin, stored) == pytest.approx((primal, dual), rel=1e-5)


@pytest.mark.parametrize("shape", [(300, 20), (40, 90)], ids=["long", "wide"])
def test_ranges_of_seven_orders_make_no_difference(shape):
    rows = rows_of(*shape, orders=7.0)
    upper = np.ones(len(rows))
    primal, dual = values(rows, upper, 1.0, ascend(MatrixRows(rows), upper, 1.0, 1e-4))
    assert primal - dual <= 1e-4 * primal


def test_what_float64_cannot_hold_ends_with_the_best_that_was_met():
    rows = rows_of(40, 6, orders=24.0)
    duals = ascend(MatrixRows(rows), np.full(40, 1e6), 1.0, 1e-9)
    assert np.isfinite(duals).all()
    assert ((duals >= 0) & (duals <= 1e6)).all()


def raw_table(instances: int = 120) -> tuple[np.ndarray, np.ndarray]:
    """Columns as found, of any range and some far from zero, and labels that depend on all of them."""
    random = np.random.default_rng(0)
    plain = random.normal(size=(instances, 6))
    labels = (plain @ random.normal(size=(6, 4)) + random.normal(size=(instances, 4)) > 0).astype(float)
    return plain * 10.0 ** np.arange(-2, 4) + [0, 0, 0, 30, 0, 2000], labels


def test_a_machine_without_couplings_is_its_labels_by_themselves(monkeypatch):
    X, Y = raw_table()
    machine = SharedProblem.from_labels(X, Y, cliques=[], C=0.1)
    network = LabelProblems.from_labels(X, Y, parents=False, C=0.1)
    monkeypatch.setattr(proximal_newton, "PATIENCE", 0)
    monkeypatch.setattr(dual_coordinate, "PATIENCE", 0)
    monkeypatch.setattr(dual_coordinate, "ROUNDS_PER_COLUMN", 0)
    found = [
        solver.update(problem, solver.init(problem), tol=1e-6)
        for solver, problem in ((proximal_newton, machine), (dual_coordinate, network))
    ]
    assert found[0].primal == pytest.approx(found[1].primal.sum(), rel=1e-5)


@pytest.mark.parametrize("per_label", [False, True])
def test_it_ends_what_the_solvers_began(monkeypatch, per_label):
    X, Y = raw_table()
    random = np.random.default_rng(2)
    weight = random.integers(0, 3, Y.shape if per_label else len(Y)).astype(float)
    missing = np.where(random.random(Y.shape) < 0.2, np.nan, Y)
    network = LabelProblems.from_labels(X, missing, C=0.1, sample_weight=weight)
    machine = SharedProblem.from_labels(X, Y, C=0.1, coupling_penalty=3.0, sample_weight=weight)
    for solver, problem in ((dual_coordinate, network), (proximal_newton, machine)):
        state = solver.init(problem)
        assert not state.solved(1e-5)
        monkeypatch.setattr(solver, "PATIENCE", 0)
        monkeypatch.setattr(dual_coordinate, "ROUNDS_PER_COLUMN", 0)
        ended = solver.update(problem, state, tol=1e-5)
        assert ended.num_iters == 1
        assert ended.gap <= 1e-5
        again = solver.init(problem, ended.dual_coef)
        assert (again.gap, again.primal) == (pytest.approx(ended.gap, rel=1e-6), pytest.approx(ended.primal))
        # Where nothing is nearer the state stays the same, and whoever drives the solver stops.
        while (nearer := solver.update(problem, ended, tol=1e-15)) is not ended:
            assert nearer.gap < ended.gap
            ended = nearer


@pytest.mark.parametrize("estimator", [LMSBNClassifier, LMBMClassifier])
def test_raw_columns_are_learned_at_any_penalty(estimator):
    X, Y = raw_table()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = estimator(C=1.0, random_state=0).fit(X, Y)
    assert model.duality_gap_ <= 1e-3
