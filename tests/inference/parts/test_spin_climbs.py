"""Labellings are made better, and stay allowed."""

from __future__ import annotations

import numpy as np

from lmbm_torch.constraints import Constraints
from lmbm_torch.inference.relaxations.semidefinite.spin_problems import SpinProblem, climbed, tabu

NAMES = ("a", "b", "c", "d")
EVERYWHERE = np.ones(5)


def machine(rule: str, fields: list[float]) -> SpinProblem:
    return SpinProblem.of_machine(np.array(fields), np.zeros((4, 4)), Constraints.of(rule, NAMES))


def test_pairs_are_flipped_where_no_single_label_may():
    start = np.array([[1.0, 1, -1, -1, -1]])
    found = climbed(machine("exactly_one(a, b, c, d)", [0.0, 1, 5, 2]), start, EVERYWHERE)
    assert found.tolist() == [[1, -1, -1, 1, -1]]


def test_single_labels_are_flipped_as_far_as_rules_allow():
    start = -np.ones((1, 5))
    start[0, 0] = 1
    found = climbed(machine("at_most(2, a, b, c, d)", [0.5, 3.0, -1.0, 2.0]), start, EVERYWHERE)
    assert found.tolist() == [[1, -1, 1, -1, 1]]


def test_the_surest_labels_are_kept_where_rows_break_a_rule():
    problem = machine("at_most_one(a, b, c, d)", [0.0] * 4)
    found = climbed(problem, np.ones((1, 5)), np.array([0, 0.1, 0.9, 0.3, 0.2]))
    assert found.tolist() == [[1, -1, 1, -1, -1]]


def test_a_tabu_search_leaves_labellings_that_every_flip_makes_worse():
    """Two pairs of labels that want to be alike, one on and one off."""
    couplings = np.kron(np.eye(2), 3 * (1 - np.eye(2)))
    problem = SpinProblem.of_machine(np.array([1.0, 1, -1, -1]), couplings)
    off = np.array([1.0, -1, -1, -1, -1])
    assert climbed(problem, off[None], EVERYWHERE).tolist() == [off.tolist()]
    assert problem.in_full(tabu(problem, off)[None]).tolist() == [[1, 1, 1, -1, -1]]
    assert off.tolist() == [1, -1, -1, -1, -1]


def test_tabu_searches_find_better_labellings_than_climbs():
    random, gained = np.random.default_rng(0), []
    for _ in range(10):
        half = np.triu(random.normal(size=(40, 40)), 1)
        problem = SpinProblem.of_machine(random.normal(size=40), half + half.T)
        start = np.insert(random.choice([-1.0, 1.0], 40), 0, 1)
        row = climbed(problem, start[None], np.ones(41))[0]
        one, other = problem.values(np.stack([row, tabu(problem, row)]))
        assert other >= one
        gained.append(other > one)
    assert np.mean(gained) > 0.5
