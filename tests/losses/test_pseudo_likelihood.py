"""The pseudo-likelihood against conditionals by brute force."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies.pairwise import (
    clique_energies,
    labels_of,
    pairwise_energies,
    random_clique_energy,
    random_pairwise_energy,
)

from lmbm_torch.energies import PairwiseEnergy
from lmbm_torch.losses import negative_pseudo_likelihood


@given(st.one_of(pairwise_energies(), clique_energies()), st.integers(0, 2**32 - 1))
def test_is_the_sum_of_the_log_conditionals(energy, seed):
    labels = labels_of(seed, energy)
    expected = torch.zeros(energy.batch_size).double()
    for label in range(energy.num_labels):
        changed = labels.clone()
        changed[:, label] = 1 - changed[:, label]
        both = torch.stack([energy.score(labels), energy.score(changed)])
        expected -= both.log_softmax(0)[0]
    torch.testing.assert_close(negative_pseudo_likelihood(energy, labels), expected)


def test_one_label_is_the_likelihood():
    energy = PairwiseEnergy(torch.tensor([[0.4]]), torch.zeros(1, 1))
    expected = -torch.sigmoid(torch.tensor([0.8])).log()
    torch.testing.assert_close(negative_pseudo_likelihood(energy, torch.ones(1, 1)), expected)


def test_is_differentiable():
    drawn = random_pairwise_energy(0, 4)
    labels = labels_of(1, drawn)

    def loss(unary, upper):
        return negative_pseudo_likelihood(PairwiseEnergy(unary, upper.triu(1) + upper.triu(1).mT), labels)

    tensors = [tensor.clone().requires_grad_() for tensor in (drawn.unary, drawn.pairwise)]
    assert torch.autograd.gradcheck(loss, tensors)


@pytest.mark.usefixtures("no_shape_checks")
@pytest.mark.parametrize(
    "labels",
    [torch.zeros(2, 4), torch.zeros(3, 5), torch.full((3, 4), 2), torch.full((3, 4), torch.nan)],
)
def test_refuses_strange_labels(labels):
    for energy in (random_pairwise_energy(0, 4), random_clique_energy(0, 4)):
        with pytest.raises(ValueError, match=r"^labels: expected"):
            negative_pseudo_likelihood(energy, labels)


def test_refuses_what_is_no_boltzmann_machine():
    energy = random_pairwise_energy(0, 4)
    with pytest.raises(ValueError, match=r"^pairwise: expected a symmetric matrix"):
        negative_pseudo_likelihood(PairwiseEnergy(energy.unary, energy.pairwise.triu()), torch.zeros(3, 4))
