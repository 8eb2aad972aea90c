"""Semidefinite branch and bound on Boltzmann machines against enumeration."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from strategies.directed import random_known
from strategies.pairwise import random_pairwise_energy

from lmbm_torch.data.named import data_folder
from lmbm_torch.energies import PairwiseEnergy
from lmbm_torch.inference.enumeration import exact
from lmbm_torch.inference.relaxations.semidefinite import decoding as semidefinite
from lmbm_torch.inference.relaxations.semidefinite import spin_search

FORMS = (
    {"coupling": 0.3},
    {"coupling": 1.0, "density": 0.4},
    {"coupling": 1.0, "per_example": True},
    {"coupling": 30.0, "density": 0.7, "per_example": True},
)
# The unweighted graphs of the Biq Mac library, and their largest cuts.
CUTS = {"g05_60.0": 536, "g05_80.0": 929, "g05_100.4": 1440}


@pytest.fixture
def bounded(monkeypatch):
    """Enumerate hardly anything, so that bounds have to do it."""
    monkeypatch.setattr(spin_search, "ENUMERATED", 4)


def assert_agrees(came, expected):
    """The same optimum, proven."""
    assert came.status.exact.all()
    assert came.status.converged.all()
    torch.testing.assert_close(came.objective, expected.objective, rtol=1e-9, atol=1e-9)
    last = came.objective if came.objective.ndim == 1 else came.objective[:, -1]
    assert torch.equal(came.bound, last)


def all_apart(labels=9, noise=0.0):
    """Labels every two of which want to differ: what is said of three and five of them leaves a gap."""
    energy = random_pairwise_energy(0, labels, 1)
    pairwise = noise * energy.pairwise - 1 + torch.eye(labels)
    return PairwiseEnergy(noise * energy.unary, pairwise)


@pytest.mark.usefixtures("bounded")
@pytest.mark.parametrize(("seed", "labels"), [(0, 6), (1, 7), (2, 6), (3, 5)])
def test_equals_enumeration(seed, labels):
    energy = random_pairwise_energy(seed, labels, 2, **FORMS[seed])
    known = random_known(seed, energy, 0.3)
    for given in (None, known):
        came = semidefinite.decode(energy, known=given)
        assert_agrees(came, exact.decode(energy, known=given))
    assert (came.labels[~known.isnan()] == known[~known.isnan()]).all()


def assert_best_and_bounded_from_the_root_on(energy):
    best = exact.decode(energy)
    assert_agrees(semidefinite.decode(energy), best)
    # Enumeration adds the same numbers up in another order.
    assert ((semidefinite.decode(energy, node_limit=1).bound - best.objective) >= -1e-12).all()


@pytest.mark.slow
@pytest.mark.usefixtures("bounded")
@pytest.mark.parametrize("seed", range(100))
def test_equals_enumeration_on_two_thousand_problems(seed):
    energy = random_pairwise_energy(seed, 1 + seed % 14, 20, **FORMS[seed % len(FORMS)])
    assert_best_and_bounded_from_the_root_on(energy)


@pytest.mark.usefixtures("bounded")
def test_the_best_few_come_best_first():
    energy = random_pairwise_energy(5, 6, 1)
    came, best = semidefinite.decode(energy, top_k=3), exact.decode(energy, top_k=3)
    assert_agrees(came, best)
    assert torch.equal(came.labels, best.labels)


@pytest.mark.usefixtures("bounded")
def test_a_limit_leaves_a_bound():
    energy = all_apart(noise=0.05)
    best = exact.decode(energy).objective
    for limit in ({"node_limit": 1}, {"node_limit": 2}, {"time_limit": 1e-9}):
        came = semidefinite.decode(energy, **limit)
        assert not came.status.converged.any()
        assert not came.status.exact.any()
        assert (came.bound >= best).all()
        assert (came.objective <= best + 1e-9).all()
        assert (came.nodes <= limit.get("node_limit", 1)).all()
        torch.testing.assert_close(came.status.residual, (came.bound - came.objective).abs())


def test_cores_change_no_answer_and_no_node(monkeypatch):
    # So that there are several parts at once.
    monkeypatch.setattr(spin_search, "MOST_ROUNDS", 3)
    energy, threads, found = random_pairwise_energy(1, 16, 1, coupling=1.0), torch.get_num_threads(), []
    try:
        for number in (1, 3):
            torch.set_num_threads(number)
            found.append(semidefinite.decode(energy, top_k=3))
    finally:
        torch.set_num_threads(threads)
    one, several = found
    assert one.nodes > 2 * spin_search.TOGETHER
    assert torch.equal(one.nodes, several.nodes)
    assert torch.equal(one.labels, several.labels)
    assert torch.equal(one.bound, several.bound)


@pytest.mark.usefixtures("bounded")
def test_whole_numbers_end_a_search_before_its_bound_is_tight():
    came = semidefinite.decode(all_apart())
    assert came.objective.tolist() == came.bound.tolist() == [4.0]
    assert came.nodes.tolist() == [1]
    noisy = all_apart(7, noise=0.05)
    came = semidefinite.decode(noisy)
    assert_agrees(came, exact.decode(noisy))
    assert (came.nodes > 1).all()


@pytest.mark.usefixtures("bounded")
def test_parts_that_nothing_connects():
    one, other = random_pairwise_energy(1, 5, 1), random_pairwise_energy(2, 4, 1)
    blocks = PairwiseEnergy(
        torch.cat([one.unary, other.unary], 1), torch.block_diag(one.pairwise, other.pairwise)
    )
    order = torch.randperm(9, generator=torch.Generator().manual_seed(0))
    mixed = PairwiseEnergy(blocks.unary[:, order], blocks.pairwise[order][:, order])
    for top_k in (1, 3):
        came, best = semidefinite.decode(mixed, top_k=top_k), exact.decode(mixed, top_k=top_k)
        assert_agrees(came, best)
    limited = semidefinite.decode(mixed, node_limit=1)
    assert (limited.bound >= exact.decode(mixed).objective).all()


def test_without_weights_every_labelling_is_best():
    energy = PairwiseEnergy(torch.zeros(1, 12).double(), torch.zeros(12, 12).double())
    assert_agrees(semidefinite.decode(energy), exact.decode(energy))


@pytest.mark.usefixtures("bounded")
@pytest.mark.parametrize("scale", [1e-300, 1e-9, 1e9, 1e20])
def test_magnitudes(scale):
    energy = random_pairwise_energy(3, 5, 1)
    scaled = PairwiseEnergy(energy.unary * scale, energy.pairwise * scale)
    came, best = semidefinite.decode(scaled), exact.decode(scaled)
    assert came.status.exact.all()
    torch.testing.assert_close(came.objective, best.objective, rtol=1e-9, atol=0)


@pytest.mark.usefixtures("bounded")
def test_float32():
    energy = random_pairwise_energy(7, 5, 1, dtype=torch.float32)
    came = semidefinite.decode(energy)
    assert came.objective.dtype == came.bound.dtype == came.status.residual.dtype == torch.float32
    torch.testing.assert_close(came.objective, exact.decode(energy).objective)
    assert came.status.exact.all()


def test_dense_labels_are_proven_again_by_the_same_search():
    generator = torch.Generator().manual_seed(30)
    upper = torch.randn(22, 22, generator=generator).double().triu(1) / 22**0.5
    energy = PairwiseEnergy(torch.randn(1, 22, generator=generator).double(), upper + upper.mT)
    came = semidefinite.decode(energy)
    assert came.status.exact.all()
    torch.testing.assert_close(energy.score(came.labels), came.objective)
    again = semidefinite.decode(energy)
    assert torch.equal(again.labels, came.labels)
    assert torch.equal(again.nodes, came.nodes)


@pytest.mark.slow
@pytest.mark.parametrize("name", CUTS)
def test_largest_cuts_of_dense_graphs(name):
    path = data_folder() / "maxcut" / f"{name}.rud"
    edges = np.loadtxt(path, skiprows=1)
    size = int(edges[:, :2].max())
    weights = np.zeros((size, size))
    weights[edges[:, 0].astype(int) - 1, edges[:, 1].astype(int) - 1] = edges[:, 2]
    weights = torch.tensor(weights + weights.T)
    energy = PairwiseEnergy(torch.zeros(1, size).double(), -weights / 2, weights.sum()[None] / 4)
    came = semidefinite.decode(energy)
    assert came.status.exact.all()
    assert came.objective.item() == CUTS[name]


def test_what_is_refused():
    energy = random_pairwise_energy(0, 3)
    with pytest.raises(ValueError, match=r"top_k: expected at most 2\^3, .* got 9"):
        semidefinite.decode(energy, top_k=9)
    with pytest.raises(ValueError, match="top_k: expected an integer of at least 1"):
        semidefinite.decode(energy, top_k=0)
    with pytest.raises(ValueError, match="node_limit: expected an integer of at least 1"):
        semidefinite.decode(energy, node_limit=0)
    with pytest.raises(ValueError, match="time_limit: expected"):
        semidefinite.decode(energy, time_limit=0.0)


def test_values_come_in_falling_order():
    energy = random_pairwise_energy(9, 5, 1)
    scores = semidefinite.decode(energy, top_k=32).objective[0].tolist()
    assert all(one >= other for one, other in pairwise(scores))
    assert scores == pytest.approx(exact.decode(energy, top_k=32).objective[0].tolist())
