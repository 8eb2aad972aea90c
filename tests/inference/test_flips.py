"""Flips of single labels: labellings that none betters, as far as they can know."""

from __future__ import annotations

import sys
from functools import partial

import numpy as np
import pytest
import torch
from interpreted import interpreted
from strategies.directed import random_known
from strategies.pairwise import random_pairwise_energy

from lmbm_torch import inference
from lmbm_torch.energies import PairwiseEnergy
from lmbm_torch.inference.enumeration import exact
from lmbm_torch.inference.relaxations.semidefinite.spin_problems import SpinProblem, tabu
from lmbm_torch.inference.search.undirected_branch_and_bound import decode_by_flips, undirected_problem

flips = interpreted("search.flips")
drawn = partial(random_pairwise_energy, per_example=True)


@pytest.mark.parametrize("strength", [0.1, 1.0, 30.0])
@pytest.mark.parametrize("given", [False, True])
def test_no_flip_of_a_free_label_raises_the_score(strength, given):
    energy = drawn(1, 9, 40, coupling=strength)
    known = random_known(2, energy, 0.3) if given else None
    found = decode_by_flips(energy, known=known)
    assert torch.equal(found.objective, energy.score(found.labels))
    for label in range(9):
        other = found.labels.clone()
        other[:, label] = 1 - other[:, label]
        gain = energy.score(other) - found.objective
        free = torch.ones(40, dtype=torch.bool) if known is None else known[:, label].isnan()
        assert (gain[free] <= 1e-9 * found.bound[free]).all()
    if known is not None:
        assert (found.labels[~known.isnan()] == known[~known.isnan()]).all()
    best = exact.decode(energy, known=known)
    assert (found.objective <= best.objective + 1e-9).all()
    assert (best.objective <= found.bound + 1e-9).all()
    assert (found.objective >= best.objective - 1e-9).double().mean() > 0.75


def test_the_bound_is_tight_where_labels_do_not_depend_on_each_other():
    energy = drawn(0, 6, 40, coupling=0.0)
    found = decode_by_flips(energy)
    assert torch.equal(found.labels, (energy.unary > 0).long())
    torch.testing.assert_close(found.bound, found.objective, rtol=1e-12, atol=0)


@pytest.mark.parametrize("strength", [0.1, 1.0, 30.0])
def test_rows_are_flipped_alike_however_many(strength):
    energy = drawn(3, 12, 70, coupling=strength)
    alone = [decode_by_flips(energy.select(torch.tensor([row]))).labels for row in range(70)]
    assert torch.equal(torch.cat(alone), decode_by_flips(energy).labels)


def cut(seed: int, labels: int) -> PairwiseEnergy:
    """Half of all pairs repel each other: the best labelling is a largest cut."""
    generator = torch.Generator().manual_seed(seed)
    upper = torch.rand(3, labels, labels, generator=generator).lt(0.5).double().triu(1)
    return PairwiseEnergy(torch.zeros(3, labels).double(), -(upper + upper.mT) / 4)


@pytest.mark.parametrize("labels", [40, 60, 90])
def test_dense_machines_are_searched_past_the_limit_of_nodes(labels):
    energy, generator = cut(labels, labels), np.random.default_rng(0)
    found = inference.decode(energy)
    assert not found.status.exact.any()
    for row, couplings in enumerate(energy.pairwise.numpy()):
        problem = SpinProblem.of_machine(np.zeros(labels), couplings, None)
        starts = generator.choice([-1.0, 1.0], (8, labels + 1))
        rows = np.stack([tabu(problem, start) for start in starts])
        assert found.objective[row] >= problem.values(rows).max() - 1e-9
    assert torch.equal(found.objective, energy.score(found.labels))
    assert (found.bound >= found.objective).all()


@pytest.mark.parametrize("most_flips", [0, 7, sys.maxsize])
def test_a_tabu_search_keeps_what_is_known_and_loses_nothing(most_flips):
    energy = drawn(3, 14, 30, coupling=3.0)
    problem = undirected_problem(energy, random_known(4, energy, 0.3))
    spins = np.where(problem.known == 0, 1.0, problem.known)
    found = spins.copy()
    for fields, couplings, known, row in zip(*problem[:3], found, strict=True):
        flips.tabu(fields, couplings, known, row, most_flips)
    assert (found[problem.known != 0] == problem.known[problem.known != 0]).all()
    scores = [energy.score(torch.from_numpy(each > 0).long()) for each in (spins, found)]
    assert (scores[1] >= scores[0]).all()
    gained = (scores[1] > scores[0] + 1e-9).double().mean()
    assert (gained == 0) if most_flips == 0 else (gained > 0.5)


def test_a_labelling_that_is_the_best_stays():
    energy = drawn(5, 10, 20)
    best = 2.0 * exact.decode(energy).labels.double().numpy() - 1
    for fields, couplings, row in zip(energy.unary.numpy(), energy.pairwise.numpy(), best, strict=True):
        expected = row.copy()
        flips.tabu(fields, couplings, np.zeros(10), row, sys.maxsize)
        np.testing.assert_array_equal(row, expected)


def test_what_is_no_number_is_refused():
    energy = drawn(0, 3, 40)
    with pytest.raises(ValueError, match="unary"):
        decode_by_flips(PairwiseEnergy(energy.unary * float("nan"), energy.pairwise))
