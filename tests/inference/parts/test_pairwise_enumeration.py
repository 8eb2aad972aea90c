"""Compiled enumeration against the plain one, on either side of the split of the labels."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from strategies.pairwise import pairwise_energies, random_pairwise_energy

from lmbm_torch.energies import PairwiseEnergy
from lmbm_torch.inference import Decoding
from lmbm_torch.inference.enumeration import exact
from lmbm_torch.inference.enumeration import kernels as pairwise_enumeration


def plainly(energy: PairwiseEnergy) -> Decoding:
    """Couplings that are each example's own are enumerated in torch."""
    own = energy.pairwise.expand(energy.batch_size, -1, -1)
    return exact.decode(PairwiseEnergy(energy.unary, own, energy.constant))


def agree(energy: PairwiseEnergy) -> tuple[Decoding, Decoding]:
    assert pairwise_enumeration.suits(energy)
    found, expected = exact.decode(energy), plainly(energy)
    scale = 1 + expected.objective.abs()
    tolerance = 1e-12 if energy.dtype == torch.float64 else 1e-5
    assert ((found.objective - expected.objective).abs() <= tolerance * scale).all()
    assert torch.equal(found.objective, energy.score(found.labels))
    assert torch.equal(found.bound, found.objective)
    assert torch.equal(found.status.num_iters, expected.status.num_iters)
    assert found.status.exact.all()
    return found, expected


@given(
    energy=pairwise_energies(max_labels=7, dtypes=(torch.float32, torch.float64)).filter(
        lambda e: e.pairwise.ndim == 2
    )
)
def test_few_labels(energy):
    agree(energy)


@pytest.mark.parametrize("num_labels", [1, 8, 9, 10, 13])
@pytest.mark.parametrize("batch_size", [1, 64, 130])
def test_labels_beyond_the_low_half_and_examples_beyond_a_task(num_labels, batch_size):
    energy = random_pairwise_energy(num_labels, num_labels, batch_size)
    found, expected = agree(energy)
    assert torch.equal(found.labels, expected.labels)


def test_ties_go_to_the_lowest_number():
    energy = PairwiseEnergy(torch.zeros(3, 10), torch.zeros(10, 10))
    assert not exact.decode(energy).labels.any()


def test_what_the_kernel_is_not_for():
    shared = random_pairwise_energy(0, 9)
    own = PairwiseEnergy(shared.unary, shared.pairwise.expand(3, -1, -1))
    elsewhere = PairwiseEnergy(shared.unary.to("meta"), shared.pairwise.to("meta"))
    assert [pairwise_enumeration.suits(energy) for energy in (shared, own, elsewhere)] == [True, False, False]


def test_refusals():
    with pytest.raises(ValueError, match="unary: expected finite values"):
        exact.decode(PairwiseEnergy(torch.full((1, 2), torch.nan), torch.zeros(2, 2)))
    with pytest.raises(ValueError, match="at most 22"):
        exact.decode(PairwiseEnergy(torch.zeros(1, 23), torch.zeros(23, 23)))
