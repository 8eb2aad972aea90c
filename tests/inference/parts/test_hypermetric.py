"""Hypermetric inequalities against all of them, enumerated."""

from __future__ import annotations

from itertools import combinations, product

import numpy as np
import pytest

from lmbm_torch.inference.relaxations.semidefinite import bound as semidefinite_bound
from lmbm_torch.inference.relaxations.semidefinite.bound import Group, Inequalities


def products(size, rank=3, seed=0):
    """A positive semidefinite matrix of unit diagonal, far from any labelling's."""
    rows = np.random.default_rng(seed).normal(size=(size, rank))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return rows @ rows.T


def every(size, length):
    """All inequalities of ``length`` signs."""
    spins = list(combinations(range(size), length))
    signs = [(1, *rest) for rest in product((-1, 1), repeat=length - 1)]
    pairs = [(some, sign) for some in spins for sign in signs]
    return Group.of(np.array([some for some, _ in pairs]), np.array([sign for _, sign in pairs]))


@pytest.mark.parametrize("length", [3, 5])
def test_every_labelling_obeys_them(length):
    for spins in product((-1.0, 1.0), repeat=6):
        assert (every(6, length).slack(np.outer(spins, spins)) >= 0).all()


def test_violated_triangles_are_found_worst_first():
    matrix = products(9)
    found = semidefinite_bound.triangles(matrix, 0.1, 10**6)
    all_of_them = every(9, 3)
    violated = all_of_them.select(all_of_them.slack(matrix) < -0.2)
    # A triangle's violation is that of Σ b_i b_j X_ij, half of the form's.
    assert {*found.names().tolist()} == {*violated.names().tolist()}
    assert (np.diff(found.slack(matrix)) >= -1e-12).all()
    few = semidefinite_bound.triangles(matrix, 0.1, 5)
    assert np.array_equal(few.spins, found.spins[:5])


def test_longer_ones_take_the_best_two_further_spins():
    matrix = products(9)
    base = semidefinite_bound.triangles(matrix, 0.1, 8)
    found = semidefinite_bound.longer(base, matrix, 0.0, 10**6)
    assert len(found)
    assert (found.slack(matrix) < 0).all()
    candidates = every(9, 5)
    slack = candidates.slack(matrix)
    worst = np.inf
    for spins, signs in zip(base.spins, base.signs, strict=True):
        places = np.array([np.searchsorted(each, spins) for each in candidates.spins]).clip(max=4)
        there = (np.take_along_axis(candidates.spins, places, 1) == spins).all(1)
        own = np.take_along_axis(candidates.signs, places, 1)
        agrees = there & ((own == signs * own[:, :1]).all(1))
        worst = min(worst, slack[agrees].min())
    assert found.slack(matrix).min() == pytest.approx(worst)


@pytest.mark.parametrize("sign", [1, -1])
def test_merged_inequalities_hold_where_the_spins_agree(sign):
    before = Inequalities((every(6, 3), every(6, 5)))
    prices = np.random.default_rng(0).random(len(before))
    after, kept = before.merged(prices, gone=2, kept=4, sign=sign)
    assert len(after) == len(kept)
    assert len(np.unique(after.groups[0].names())) == len(after.groups[0])
    whole = every(5, 3)
    assert {*after.groups[0].names().tolist()} == {*whole.names().tolist()}
    # What each says of merged spins, weighted by its price, is what it said of all of them.
    matrix = products(5)
    spread = np.insert(np.insert(matrix, 2, sign * matrix[3], 0), 2, 0, 1)
    spread[:, 2] = sign * spread[:, 4]
    total = sum(
        part @ group.slack(matrix) for group, part in zip(after.groups, after.parts(kept), strict=True)
    )
    expected = 0.0
    for group, part in zip(before.groups, before.parts(prices), strict=True):
        signs = np.where(group.spins == 2, sign * group.signs, group.signs)
        # Two spins that add up say no more than that products are between −1 and 1.
        doubled = np.abs((signs * np.isin(group.spins, (2, 4))).sum(1)) == 2
        expected += part[~doubled] @ group.slack(spread)[~doubled]
    assert total == pytest.approx(expected)


def test_those_that_are_there_are_not_joined_again():
    group, other = every(5, 3), every(5, 5)
    first = Inequalities((group.select(np.arange(4)), other.select(np.arange(2))))
    joined, prices = first.join(np.arange(6.0), (group.select(np.arange(2, 9)), other))
    assert [len(each) for each in joined.groups] == [9, len(other)]
    assert prices[:4].tolist() == [0, 1, 2, 3]
    assert prices[9:11].tolist() == [4, 5]
    assert prices.sum() == 15
