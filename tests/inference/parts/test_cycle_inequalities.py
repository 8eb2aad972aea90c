"""Inequalities of three labels: true of every labelling, and what fractional marginals violate."""

from __future__ import annotations

from math import comb

import numpy as np
import torch
from hypothesis import given
from strategies.pairwise import all_labellings, pairwise_energies, random_pairwise_energy

from lmbm_torch.energies import PairwiseEnergy
from lmbm_torch.inference.relaxations.integer_program import FACTORS, UPPER, CycleInequalities
from lmbm_torch.inference.relaxations.local_polytope import LocalPolytope


def solution(polytope, labels):
    """The programme's variables for one labelling."""
    first, second = polytope.pairs
    return np.concatenate([labels, labels[first] * labels[second]])


@given(pairwise_energies(max_labels=6))
def test_every_labelling_satisfies_them(energy):
    polytope = LocalPolytope.of(energy, is_hinge=False)
    cycles = CycleInequalities.of(polytope)
    for labels in all_labellings(energy.num_labels)[:, 0].double().numpy():
        assert len(cycles.violated(solution(polytope, labels), 1000).upper) == 0


def test_each_is_met_by_some_labellings_and_so_cannot_be_tighter():
    polytope = LocalPolytope.of(random_pairwise_energy(0, 3), is_hinge=False)
    cycles = CycleInequalities.of(polytope)
    points = np.stack([solution(polytope, y) for y in all_labellings(3)[:, 0].double().numpy()])
    slack = UPPER - points[:, cycles.columns[0]] @ FACTORS.T
    assert slack.min() == 0
    # A facet of the six-dimensional polytope holds six labellings.
    assert ((slack == 0).sum(0) >= 6).all()


def test_halves_that_all_disagree_violate_the_last_one_most():
    # z = 0 with y = ½ says that every two labels differ.
    polytope = LocalPolytope.of(random_pairwise_energy(0, 3), is_hinge=False)
    rows = CycleInequalities.of(polytope).violated(np.array([0.5, 0.5, 0.5, 0, 0, 0]), 10)
    assert rows.upper.tolist() == [1.0]
    assert rows.factors.tolist() == [FACTORS[3].tolist()]


def test_the_worst_come_first_and_no_more_than_asked_for():
    polytope = LocalPolytope.of(random_pairwise_energy(0, 7), is_hinge=False)
    cycles = CycleInequalities.of(polytope)
    values = np.random.default_rng(0).random(7 + comb(7, 2))
    rows = cycles.violated(values, 1000)
    excess = (values[rows.columns] * rows.factors).sum(1) - rows.upper
    assert (excess > 0).all()
    assert (np.diff(excess) <= 0).all()
    few = cycles.violated(values, 5)
    assert few.columns.tolist() == rows.columns[:5].tolist()


def test_only_labels_that_are_all_coupled_have_them():
    pairwise = torch.zeros(5, 5)
    for i, j in ((0, 1), (1, 2), (0, 2), (2, 3), (3, 4)):
        pairwise[i, j] = pairwise[j, i] = 1.0
    polytope = LocalPolytope.of(PairwiseEnergy(torch.zeros(1, 5), pairwise), is_hinge=False)
    assert CycleInequalities.of(polytope).columns[:, :3].tolist() == [[0, 1, 2]]
    complete = LocalPolytope.of(random_pairwise_energy(0, 7), is_hinge=False)
    assert len(CycleInequalities.of(complete).columns) == comb(7, 3)
