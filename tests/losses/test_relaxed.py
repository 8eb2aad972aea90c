"""Losses of relaxed labels: their definitions, their gradients, and a model that learns through each."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies.pairwise import labels_of, pairwise_energies, random_pairwise_energy
from sweeps import slow

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts" / "bench"))

from lmbm_torch.energies import PairwiseEnergy
from lmbm_torch.inference.enumeration import exact
from lmbm_torch.inference.relaxations import lp_layer, lp_relaxation, sparse_map
from lmbm_torch.losses.relaxed import (
    relaxed_hamming,
    relaxed_score,
    relaxed_squared_error,
    relaxed_structured_hinge,
    sparse_map_loss,
)
from lmbm_torch.losses.structured import structured_hinge
from lmbm_torch.models import BoltzmannMachine
from lmbm_torch.references import relaxations

# cvxpylayers reads tensors as NumPy 1 did.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword")


def sparse_labels(energy):
    """SparseMAP's marginals."""
    return sparse_map.marginals(energy).labels


RELAX = (partial(lp_layer.relaxed_labels, temperature=1.0), sparse_labels)
LOSSES = {
    "structured hinge": partial(relaxed_structured_hinge, inference=lp_relaxation.decode),
    "SparseMAP": sparse_map_loss,
    "Hamming, SparseMAP": partial(relaxed_hamming, inference=sparse_labels),
    "squared error, SparseMAP": partial(relaxed_squared_error, inference=sparse_labels),
    "Hamming, layer": partial(relaxed_hamming, inference=RELAX[0]),
    "squared error, layer": partial(relaxed_squared_error, inference=RELAX[0]),
}


def by_symmetric_weights(loss, energy, labels):
    """The loss as a function of tensors that may change freely."""

    def value(unary, pairwise):
        upper = pairwise.triu(1)
        return loss(PairwiseEnergy(unary, upper + upper.mT), labels)

    return value, (energy.unary.clone().requires_grad_(), energy.pairwise.clone().requires_grad_())


@given(pairwise_energies(max_labels=6), st.integers(0, 2**32 - 1))
def test_the_relaxed_score_of_labellings_is_their_score(energy, seed):
    labels = labels_of(seed, energy)
    torch.testing.assert_close(relaxed_score(energy, labels.double()), energy.score(labels))


@given(pairwise_energies(max_labels=6, max_batch=2))
@settings(max_examples=15)
def test_the_relaxed_score_at_the_optimum_is_its_value(energy):
    pairs = [(i, j) for j in range(energy.num_labels) for i in range(j)]
    values, labels = relaxations.relax(relaxations.score_relaxation(energy.num_labels, pairs), energy)
    size = float(energy.unary.abs().sum() + energy.pairwise.abs().sum())
    torch.testing.assert_close(
        relaxed_score(energy, labels.clamp(0, 1)), values + energy.constant, rtol=0, atol=1e-6 * (1 + size)
    )


@given(pairwise_energies(max_labels=6), st.integers(0, 2**32 - 1), st.sampled_from((0.5, 2.0)))
@settings(max_examples=15)
def test_the_relaxed_hinge_is_at_least_the_structured_one(energy, seed, slope):
    labels = labels_of(seed, energy)
    relaxed = relaxed_structured_hinge(energy, labels, inference=lp_relaxation.decode, slope=slope)
    size = float(energy.unary.abs().sum() + energy.pairwise.abs().sum())
    assert (relaxed >= structured_hinge(energy, labels, slope=slope) - 1e-6 * (1 + size)).all()


def test_the_relaxed_hinge_is_the_structured_one_where_couplings_attract():
    energy = random_pairwise_energy(0, 5, 4, coupling=0.0)
    energy = PairwiseEnergy(energy.unary, 0.3 * (1 - torch.eye(5).double()))
    labels = labels_of(0, energy)
    relaxed = relaxed_structured_hinge(energy, labels, inference=lp_relaxation.decode)
    torch.testing.assert_close(relaxed, structured_hinge(energy, labels), rtol=0, atol=1e-6)


def test_losses_of_marginals_are_their_definitions():
    energy = random_pairwise_energy(0, 4, 3)
    labels, marginals = labels_of(1, energy), torch.rand(3, 4).double()
    wrong = (marginals - labels).abs()
    torch.testing.assert_close(relaxed_hamming(energy, labels, inference=lambda _: marginals), wrong.sum(1))
    torch.testing.assert_close(
        relaxed_squared_error(energy, labels, inference=lambda _: marginals), wrong.square().sum(1)
    )


@given(pairwise_energies(max_labels=5), st.integers(0, 2**32 - 1))
@settings(max_examples=15)
def test_the_sparse_map_loss_is_zero_where_the_truth_has_all_probability(energy, seed):
    labels = labels_of(seed, energy)
    loss = sparse_map_loss(energy, labels)
    size = float(energy.unary.abs().sum() + energy.pairwise.abs().sum())
    assert (loss >= -1e-9 * (1 + size)).all()
    sure = (sparse_map.marginals(energy).labels - labels).abs().amax(1) < 1e-12
    torch.testing.assert_close(
        loss[sure], torch.zeros(int(sure.sum())).double(), rtol=0, atol=1e-9 * (1 + size)
    )
    won = energy.add_unary(1e4 * (2.0 * labels.double() - 1) * (1 + size))
    torch.testing.assert_close(
        sparse_map_loss(won, labels), torch.zeros(len(labels)).double(), rtol=0, atol=1e-3
    )


# The layer's own differences are as coarse as its solver; its tests compare it with a finer one.
@pytest.mark.parametrize(
    "name", ["structured hinge", "SparseMAP", slow("Hamming, SparseMAP"), slow("squared error, SparseMAP")]
)
def test_gradients(name):
    energy = random_pairwise_energy(5, 4, 2)
    value, tensors = by_symmetric_weights(LOSSES[name], energy, labels_of(2, energy))
    assert torch.autograd.gradcheck(
        value, tensors, atol=1e-4, eps=1e-4 if name == "structured hinge" else 1e-6
    )


@pytest.mark.parametrize("name", LOSSES)
def test_a_model_learns_through_it(name):
    # The second label is the first one turned round, at which a feature hints; the third is the other one.
    first, third = torch.arange(8) // 2 % 2, torch.arange(8) % 2
    labels = torch.stack([first, 1 - first, third], 1)
    features = torch.stack([2.0 * third - 1, 0.3 * (2.0 * first - 1)], 1)
    model = BoltzmannMachine(2, 3)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        # At equal scores of all labellings the few with probability tell nothing of the others.
        for parameter in model.parameters():
            parameter += 0.05 * torch.randn(parameter.shape, generator=generator)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.2)
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = LOSSES[name](model(features), labels).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]
    assert exact.decode(model(features)).labels.equal(labels)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize(
    "labels", [torch.zeros(3, 4), torch.full((3, 3), 0.5), torch.full((3, 3), torch.nan)]
)
def test_labels_are_refused(name, labels):
    with pytest.raises(ValueError, match=r"^labels: expected"):
        LOSSES[name](random_pairwise_energy(0, 3), labels)


def test_a_decoder_that_relaxes_nothing_is_refused():
    energy = random_pairwise_energy(0, 3)
    with pytest.raises(ValueError, match=r"^inference: expected a routine that gives relaxed labels"):
        relaxed_structured_hinge(energy, labels_of(0, energy), inference=exact.decode)
