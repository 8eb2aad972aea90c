"""The structured hinge against the definition by brute force, with any decoder that is as good."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies.bipartite import random_bipartite_energy, random_units
from strategies.pairwise import (
    all_labellings,
    clique_energies,
    labels_of,
    pairwise_energies,
    random_pairwise_energy,
)

from lmbm_torch.constraints import Constraints
from lmbm_torch.energies import PairwiseEnergy
from lmbm_torch.inference import decode
from lmbm_torch.inference.enumeration import exact
from lmbm_torch.inference.relaxations import integer_program
from lmbm_torch.losses import structured_hinge
from lmbm_torch.losses.structured import loss_augment

UNDIRECTED = st.one_of(pairwise_energies(), clique_energies())


@given(UNDIRECTED, st.integers(0, 2**32 - 1), st.sampled_from((0.5, 1.0, 4.0)))
def test_it_is_the_largest_violation(energy, seed, slope):
    labels = labels_of(seed, energy)
    every = all_labellings(energy.num_labels)
    violations = slope * (every != labels).sum(-1) + energy.score(every) - energy.score(labels)
    loss = structured_hinge(energy, labels, slope=slope)
    torch.testing.assert_close(loss, violations.amax(0), rtol=1e-7, atol=1e-6)
    assert (loss >= 0).all()


@given(pairwise_energies(min_labels=2), st.integers(0, 2**32 - 1))
def test_an_integer_program_serves_as_well(energy, seed):
    labels = labels_of(seed, energy)
    found = structured_hinge(energy, labels, inference=integer_program.decode)
    torch.testing.assert_close(found, structured_hinge(energy, labels), rtol=1e-6, atol=1e-6)


def test_a_decoder_that_falls_short_gives_less():
    energy = random_pairwise_energy(0, 4)
    labels = labels_of(1, energy)

    def truth(augmented):
        return exact.decode(augmented, known=labels.double())

    assert structured_hinge(energy, labels, inference=truth).tolist() == [0, 0, 0]
    assert (structured_hinge(energy, labels) > 0).all()


@given(UNDIRECTED, st.integers(0, 2**32 - 1))
def test_augmentation_adds_the_hamming_loss(energy, seed):
    labels = labels_of(seed, energy)
    every = all_labellings(energy.num_labels)
    added = loss_augment(energy, labels, 2.0).score(every) - energy.score(every)
    expected = 2.0 * ((every != labels).sum(-1) - labels.sum(-1))
    torch.testing.assert_close(added, expected.double(), rtol=0, atol=1e-7 * energy.score(every).abs().max())


def test_visible_units_are_augmented_too():
    energy = random_bipartite_energy(0, 4, 3)
    (truth, _), (visible, hidden) = random_units(1, energy), random_units(2, energy)
    added = loss_augment(energy, truth).score(visible, hidden) - energy.score(visible, hidden)
    torch.testing.assert_close(added, ((visible != truth).sum(-1) - truth.sum(-1)).double())


def test_is_differentiable():
    drawn = random_pairwise_energy(2, 4)
    labels = labels_of(3, drawn)
    assert (exact.decode(loss_augment(drawn, labels)).labels != labels).any()

    def loss(unary, upper):
        return structured_hinge(PairwiseEnergy(unary, upper.triu(1) + upper.triu(1).mT), labels)

    tensors = [tensor.clone().requires_grad_() for tensor in (drawn.unary, drawn.pairwise)]
    assert torch.autograd.gradcheck(loss, tensors)


@pytest.mark.usefixtures("no_shape_checks")
@pytest.mark.parametrize("labels", [torch.zeros(2, 4), torch.full((3, 4), 2), torch.full((3, 4), torch.nan)])
def test_strange_labels_are_refused(labels):
    with pytest.raises(ValueError, match=r"^labels: expected"):
        structured_hinge(random_pairwise_energy(0, 4), labels)


@pytest.mark.parametrize("slope", [0.0, -1.0, float("nan")])
def test_slopes_that_are_not_positive_are_refused(slope):
    energy = random_pairwise_energy(0, 4)
    with pytest.raises(ValueError, match=r"^slope: expected"):
        structured_hinge(energy, torch.zeros(3, 4), slope=slope)


@pytest.mark.parametrize("seed", range(6))
def test_augmentation_may_look_at_allowed_labellings_alone(seed):
    energy = random_pairwise_energy(seed, 5, 4, coupling=2.0)
    rules = Constraints.of(["a -> not b", "at_least(2, b, c, d, e)", "2 a + c - d <= 1"], list("abcde"))
    every = torch.cartesian_prod(*[torch.tensor([0, 1])] * 5)
    every = every[~torch.from_numpy(rules.violated(every.numpy())).any(1)]
    labels = every[torch.arange(4) * 3 % len(every)]
    loss = structured_hinge(energy, labels, inference=partial(decode, constraints=rules))
    augmented = energy.score(every[:, None].expand(-1, 4, -1)) + (every[:, None] != labels).sum(-1)
    torch.testing.assert_close(loss, augmented.amax(0) - energy.score(labels))
