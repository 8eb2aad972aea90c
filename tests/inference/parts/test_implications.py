"""What one spin implies is so in every best labelling."""

from __future__ import annotations

import numpy as np
import pytest

from lmbm_torch.inference.relaxations.semidefinite.spin_parts import FRUITLESS, merge_implied
from lmbm_torch.inference.relaxations.semidefinite.spin_problems import SpinProblem

LABELS = 9


def frustrated(seed: int, density: float) -> SpinProblem:
    """A machine whose fields alone decide little."""
    random = np.random.default_rng(seed)
    couplings = np.triu(random.normal(size=(LABELS, LABELS)), 1) * (random.random((LABELS, LABELS)) < density)
    return SpinProblem.of_machine(0.3 * random.normal(size=LABELS), couplings + couplings.T, None)


def all_spins(problem: SpinProblem) -> np.ndarray:
    free = len(problem) - 1
    bits = np.arange(2**free)[:, None] >> np.arange(free) & 1
    return np.concatenate([np.ones((2**free, 1)), 2.0 * bits - 1], 1)


@pytest.mark.parametrize(("density", "most"), [(0.25, 3), (0.4, 6), (1.0, 10)])
def test_every_best_labelling_is_left(density, most):
    left = []
    for seed in range(40):
        problem = frustrated(seed, density)
        values = problem.values(spins := all_spins(problem))
        merged = merge_implied(problem)
        parts = all_spins(merged)
        np.testing.assert_allclose(problem.values(merged.in_full(parts)), merged.values(parts), atol=1e-12)
        best = spins[values.argmax()]
        assert (merged.in_full(parts) == best).all(1).any()
        left.append(len(merged))
    # Dense ones imply next to nothing.
    assert np.mean(left) < most


def test_a_cycle_that_is_at_odds_with_itself_is_one_spin():
    """No spin is decided by itself, but each decides all of its cycle: the weakest pair gives way."""
    cycle = np.array([[0, 1, -0.25], [1, 0, 1], [-0.25, 1, 0]])
    number = FRUITLESS + 2
    problem = SpinProblem.of_machine(np.zeros(3 * number), np.kron(np.eye(number), cycle), None)
    merged = merge_implied(problem)
    assert len(merged) == 1 + number
    assert (merged.values(all_spins(merged)) == 1.75 * number).all()


def test_problems_in_which_nothing_is_implied_are_left_soon(monkeypatch):
    asked = []

    def nothing(fields, couplings):
        asked.append(len(fields))
        return np.zeros(len(fields))

    monkeypatch.setattr("lmbm_torch.inference.relaxations.semidefinite.spin_parts.persistent_spins", nothing)
    problem = SpinProblem.of_machine(np.ones(50), np.ones((50, 50)) - np.eye(50), None)
    assert merge_implied(problem) is problem
    assert len(asked) == 2 * FRUITLESS
