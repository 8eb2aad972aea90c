"""Compiled enumeration against the plain one, on either side of the split of the labels."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from pairwise_strategies import pairwise_energies, random_pairwise_energy

from lmbm_torch.energies import PairwiseEnergy
from lmbm_torch.inference import exact, pairwise_enumeration


def agree(energy: PairwiseEnergy, **settings) -> None:
    found, expected = pairwise_enumeration.decode(energy, **settings), exact.decode(energy, **settings)
    scale = 1 + expected.objective.abs()
    tolerance = 1e-12 if energy.dtype == torch.float64 else 1e-5
    assert ((found.objective - expected.objective).abs() <= tolerance * scale).all()
    assert torch.equal(found.objective, energy.score(found.labels))
    assert torch.equal(found.status.num_iters, expected.status.num_iters)
    assert found.status.exact.all()


@given(energy=pairwise_energies(max_labels=7, dtypes=(torch.float32, torch.float64)))
def test_few_labels(energy):
    agree(energy)


@pytest.mark.parametrize("num_labels", [1, 8, 9, 10, 13])
@pytest.mark.parametrize("batch_size", [1, 64, 130])
def test_labels_beyond_the_low_half_and_examples_beyond_a_task(num_labels, batch_size):
    energy = random_pairwise_energy(num_labels, num_labels, batch_size)
    agree(energy)
    found, expected = pairwise_enumeration.decode(energy), exact.decode(energy)
    assert torch.equal(found.labels, expected.labels)


def test_ties_go_to_the_lowest_number():
    energy = PairwiseEnergy(torch.zeros(3, 10), torch.zeros(10, 10))
    assert not pairwise_enumeration.decode(energy).labels.any()


def test_known_labels_are_kept():
    energy = random_pairwise_energy(0, 9)
    known = torch.full((3, 9), torch.nan, dtype=torch.float64)
    known[:, 4] = 1 - exact.decode(energy).labels[:, 4].double()
    agree(energy, known=known)
    assert torch.equal(pairwise_enumeration.decode(energy, known=known).labels[:, 4], known[:, 4].long())


def test_refusals():
    with pytest.raises(ValueError, match="unary: expected finite values"):
        pairwise_enumeration.decode(PairwiseEnergy(torch.full((1, 2), torch.nan), torch.zeros(2, 2)))
    with pytest.raises(ValueError, match="at most 22"):
        pairwise_enumeration.decode(PairwiseEnergy(torch.zeros(1, 23), torch.zeros(23, 23)))
