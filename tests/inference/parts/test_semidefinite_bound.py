"""Semidefinite bounds against enumeration and against cvxpy."""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations, product

import numpy as np
import pytest

from lmbm_torch.inference.relaxations.semidefinite import bound as semidefinite_bound
from lmbm_torch.inference.relaxations.semidefinite.bound import Relaxation
from lmbm_torch.inference.relaxations.semidefinite.spin_problems import SpinProblem

SIZE = 8


def quadratic(seed=0, size=SIZE):
    upper = np.triu(np.random.default_rng(seed).normal(size=(size, size)), 1)
    return SpinProblem.of(upper + upper.T, constant=0.7)


def every_row(size=SIZE):
    return np.array([(1.0, *rest) for rest in product((-1.0, 1.0), repeat=size - 1)])


@pytest.mark.parametrize("seed", range(5))
def test_any_multipliers_prove_a_bound(seed):
    problem, generator = quadratic(), np.random.default_rng(seed)
    relaxation, rows = Relaxation.of(problem), every_row()
    values = problem.values(rows)
    for _ in range(3):
        proof = relaxation.round()
        relaxation.tighten()
        assert proof.bound >= values.max()
    group = semidefinite_bound.triangles(np.eye(SIZE) * 2 - 1, 0.1, 10**6)
    relaxation.inequalities, relaxation.prices = relaxation.inequalities.join(
        relaxation.prices, (group, relaxation.inequalities.groups[1])
    )
    relaxation.diagonal = generator.normal(size=SIZE)
    relaxation.prices = generator.exponential(0.1, size=len(relaxation.prices))
    proof = relaxation.proof()
    assert proof.bound >= values.max()
    leading = np.abs(rows @ proof.leading) == SIZE
    assert proof.others >= values[~leading].max()


def test_a_tight_relaxation_proves_its_leading_vector():
    strong = SpinProblem.of(quadratic().matrix + 5 * (1 - np.eye(SIZE)))
    relaxation, values = Relaxation.of(strong), strong.values(every_row())
    for _ in range(12):
        proof = relaxation.round()
        relaxation.tighten()
    best, second = np.sort(values)[::-1][:2]
    assert strong.values(proof.leading[None])[0] == pytest.approx(best)
    assert proof.bound >= best
    assert proof.others < best
    assert proof.others >= second


def exact_value(problem: SpinProblem, row: np.ndarray) -> Fraction:
    """The score of a spin vector, without rounding."""
    spins, matrix = [Fraction(spin) for spin in row], problem.matrix
    products = (
        Fraction(matrix[i, j]) * spins[i] * spins[j] for i in range(len(row)) for j in range(len(row))
    )
    return sum(products, Fraction(problem.constant))


@pytest.mark.parametrize("seed", range(20))
def test_bounds_are_what_the_leading_vector_and_the_next_best_attain(seed):
    """Of M = μ I + τ v vᵀ both bounds are attained, so that no term of them may be less."""
    random = np.random.default_rng(seed)
    vector = random.uniform(0.2, 1, SIZE) * random.choice([-1.0, 1.0], SIZE)
    vector /= np.linalg.norm(vector)
    second, spread = random.normal(), random.exponential()
    matrix = spread * np.outer(vector, vector)
    diagonal = -(second + matrix.diagonal())
    np.fill_diagonal(matrix, 0)
    problem = SpinProblem.of(matrix, constant=random.normal())
    relaxation = Relaxation.of(problem)
    relaxation.diagonal = diagonal
    proof = relaxation.proof()
    signs = np.where(vector < 0, -1.0, 1.0)
    flipped = signs * np.where(np.arange(SIZE) == np.abs(vector).argmin(), -1.0, 1.0)
    assert np.abs(proof.leading @ signs) == SIZE
    values = exact_value(problem, signs), exact_value(problem, flipped)
    assert Fraction(proof.others) >= values[1]
    assert proof.others == pytest.approx(float(values[1]), abs=1e-9)
    # The first bound is ‖x‖² λ₁, that of a vector whose entries have the same size.
    assert Fraction(proof.bound) >= values[0]


@pytest.mark.parametrize("seed", range(20))
def test_the_first_bound_is_attained_by_spins_that_are_an_eigenvector(seed):
    random = np.random.default_rng(seed)
    signs, scale = random.choice([-1.0, 1.0], SIZE), random.exponential()
    matrix = scale * np.outer(signs, signs)
    diagonal = -matrix.diagonal() - random.normal()
    np.fill_diagonal(matrix, 0)
    problem = SpinProblem.of(matrix, constant=random.normal())
    relaxation = Relaxation.of(problem)
    relaxation.diagonal = diagonal
    value = exact_value(problem, signs)
    assert Fraction(relaxation.proof().bound) >= value
    assert relaxation.proof().bound == pytest.approx(float(value), abs=1e-9)


def test_rounds_come_to_what_cvxpy_finds():
    size = 5
    problem = quadratic(2, size)
    cvxpy = pytest.importorskip("cvxpy")
    matrix = cvxpy.Variable((size, size), PSD=True)
    constraints = [cvxpy.diag(matrix) == 1]
    for length in (3, 5):
        for spins in combinations(range(size), length):
            for rest in product((-1, 1), repeat=length - 1):
                signs = np.zeros(size)
                signs[list(spins)] = 1, *rest
                constraints.append(signs @ matrix @ signs >= 1)
    objective = cvxpy.trace(problem.matrix @ matrix) + problem.constant
    expected = cvxpy.Problem(cvxpy.Maximize(objective), constraints).solve(solver="CLARABEL")
    relaxation = Relaxation.of(problem)
    for _ in range(25):
        bound = relaxation.round().bound
        relaxation.tighten()
    assert bound >= expected - 1e-6
    # Inequalities that are violated by less than a share are left out.
    assert bound <= expected + 0.15


@pytest.mark.parametrize("sign", [1, -1])
def test_a_part_is_the_problem_of_its_labellings(sign):
    problem = quadratic()
    relaxation = Relaxation.of(problem)
    relaxation.round()
    relaxation.tighten()
    relaxation.round()
    part = relaxation.merged(gone=5, kept=2, sign=sign)
    rows = every_row(SIZE - 1)
    full = part.problem.in_full(rows)
    assert (full[:, 5] == sign * full[:, 2]).all()
    np.testing.assert_allclose(part.problem.values(rows), problem.values(full))
    assert part.proof().bound >= part.problem.values(rows).max()


@pytest.mark.parametrize("sign", [1, -1])
def test_a_part_begins_with_the_bound_of_the_whole(sign):
    relaxation = Relaxation.of(quadratic())
    before = relaxation.round().bound
    # The same bound by a matrix without positive eigenvalues, which that of a part cannot have then either.
    base = relaxation.diagonal.sum() + relaxation.problem.constant
    relaxation.diagonal = relaxation.diagonal + (before - base) / SIZE
    for gone, kept in ((5, 2), (3, 7), (4, 0)):
        assert relaxation.merged(gone, kept, sign).proof().bound <= before + 1e-9
