"""Contrastive learners: their gradients given the chains, and what long chains make of them."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from strategies.bipartite import random_bipartite_energy, random_known_visible, random_units

from lmbm_torch.energies import BipartiteEnergy
from lmbm_torch.inference.sampling import gibbs
from lmbm_torch.losses import contrastive_divergence, contrastive_perceptron, exact_negative_log_likelihood
from lmbm_torch.losses.contrastive import persistent_contrastive_divergence

LOSSES = [contrastive_divergence, contrastive_perceptron]


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def gradients(loss, energy, labels):
    tensors = [t.clone().requires_grad_() for t in (energy.visible, energy.hidden, energy.coupling)]
    return torch.autograd.grad(loss(BipartiteEnergy(*tensors), labels).sum(), tensors)


def contrast(energy, labels, reached):
    """Equation 5 and Appendix A, with the chain's state in place of the expectation; to be minimised."""
    sides = [(side.double(), energy.hidden_given_visible(side)) for side in (reached, labels)]
    (negative, hidden_negative), (positive, hidden_positive) = sides
    pairs = negative[:, :, None] * hidden_negative[:, None] - positive[:, :, None] * hidden_positive[:, None]
    return negative - positive, hidden_negative - hidden_positive, pairs.sum(0)


def assert_all_close(found, expected):
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("num_steps", [1, 3])
def test_contrastive_divergence_has_the_gradient_of_its_chain(num_steps):
    energy = random_bipartite_energy(0, 5, 3, batch_size=6)
    labels, _ = random_units(1, energy)
    reached = gibbs.sample(energy, num_steps, init=labels, generator=seeded()).visible
    assert (reached != labels).any()

    def loss(energy, labels):
        return contrastive_divergence(energy, labels, num_steps, generator=seeded())

    assert_all_close(gradients(loss, energy, labels), contrast(energy, labels, reached))
    expected = energy.free_energy(labels) - energy.free_energy(reached)
    torch.testing.assert_close(loss(energy, labels), expected)


def test_chains_may_start_elsewhere_and_go_on():
    energy = random_bipartite_energy(0, 5, 3, batch_size=6)
    labels, _ = random_units(1, energy)
    chains, _ = random_units(2, energy)
    generator, again = seeded(), seeded()
    for _ in range(3):
        loss, chains = persistent_contrastive_divergence(energy, labels, chains, generator=generator)
    expected, _ = random_units(2, energy)
    for _ in range(3):
        expected = gibbs.sample(energy, 1, init=expected, generator=again).visible
    assert torch.equal(chains, expected)
    torch.testing.assert_close(loss, energy.free_energy(labels) - energy.free_energy(chains))
    once = contrastive_divergence(energy, labels, init=chains, generator=seeded(3))
    torch.testing.assert_close(
        once, persistent_contrastive_divergence(energy, labels, chains, generator=seeded(3))[0]
    )


def test_chains_may_start_at_samples_of_the_model_without_hidden_units():
    energy = random_bipartite_energy(0, 5, 3, batch_size=6)
    labels, _ = random_units(1, energy)
    generator = seeded(3)
    start = gibbs.draw(torch.sigmoid(energy.visible), generator)
    assert (start != labels).any()
    expected = contrastive_divergence(energy, labels, 2, init=start, generator=generator)
    found = contrastive_divergence(energy, labels, 2, init="random", generator=seeded(3))
    torch.testing.assert_close(found, expected)


@pytest.mark.usefixtures("no_shape_checks")
def test_strange_starts_are_refused():
    energy = random_bipartite_energy(0, 5, 3)
    with pytest.raises(ValueError, match=r"^init: expected 'labels', 'random' or"):
        contrastive_divergence(energy, random_units(1, energy)[0], init="data")


def test_long_chains_follow_the_gradient_of_the_likelihood():
    energy = random_bipartite_energy(3, 4, 3, batch_size=2, coupling=0.7)
    labels = random_known_visible(4, energy, 1.0)
    chains = torch.zeros(20_000, 2, 4)
    loss = partial(contrastive_divergence, num_steps=20, init=chains, generator=seeded())
    found = gradients(loss, energy, labels)
    for one, other in zip(found, gradients(exact_negative_log_likelihood, energy, labels), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0.025)
    assert max(float(one.abs().max()) for one in found) > 0.3


@pytest.mark.parametrize("loss", LOSSES)
def test_missing_labels_are_drawn_given_the_others(loss):
    energy = random_bipartite_energy(0, 5, 3, batch_size=6)
    labels = random_known_visible(1, energy)
    known = ~labels.isnan()
    generator = seeded()
    complete = gibbs.sample(energy, 2, known=labels, generator=generator).visible
    assert torch.equal(complete[known].double(), labels[known])
    again = torch.Generator().set_state(generator.get_state())
    expected = loss(energy, complete, 2, generator=generator)
    if loss is contrastive_perceptron:
        modes = energy.visible_fields(gibbs.sample(energy, 2, generator=again).hidden) > 0
        reached = torch.where(known, modes, complete)
        assert not torch.equal(reached, modes.long())
        expected = (energy.free_energy(complete) - energy.free_energy(reached)).clamp_min(0)
    torch.testing.assert_close(loss(energy, labels, 2, generator=seeded()), expected)


def test_the_perceptron_steps_only_towards_truths_that_are_beaten():
    energy = random_bipartite_energy(5, 5, 3, batch_size=40)
    labels, _ = random_units(6, energy)
    reached = (energy.visible_fields(gibbs.sample(energy, 2, generator=seeded()).hidden) > 0).double()
    gain = energy.free_energy(labels) - energy.free_energy(reached)
    beaten = gain > 0
    assert beaten.any()
    assert not beaten.all()

    def loss(energy, labels):
        return contrastive_perceptron(energy, labels, 2, generator=seeded())

    torch.testing.assert_close(loss(energy, labels), gain * beaten)
    part = energy.select(beaten)
    visible, hidden, coupling = gradients(loss, energy, labels)
    expected = contrast(part, labels[beaten], reached[beaten])
    assert_all_close((visible[beaten], hidden[beaten], coupling), expected)
    assert not visible[~beaten].any()


@pytest.mark.parametrize("loss", LOSSES)
def test_every_chain_counts_alike(loss):
    energy = random_bipartite_energy(0, 4, 3)
    labels, _ = random_units(1, energy)
    chains = torch.stack([random_units(seed, energy)[0] for seed in range(6)]).unflatten(0, (2, 3))
    samples = gibbs.sample(energy, 1, init=chains, generator=seeded())
    modes = (energy.visible_fields(samples.hidden) > 0).double()
    reached = samples.visible if loss is contrastive_divergence else modes
    gain = energy.free_energy(labels) - energy.free_energy(reached)
    expected = (gain if loss is contrastive_divergence else gain.clamp_min(0)).mean((0, 1))
    torch.testing.assert_close(loss(energy, labels, init=chains, generator=seeded()), expected)


@pytest.mark.usefixtures("no_shape_checks")
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("labels", [torch.zeros(2, 4), torch.zeros(3, 5), torch.full((3, 4), 2.0)])
def test_strange_labels_are_refused(loss, labels):
    with pytest.raises(ValueError, match=r"^labels: expected"):
        loss(random_bipartite_energy(0, 4, 3), labels)
