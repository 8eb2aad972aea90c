"""Losses of chains against enumeration, and their gradients."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from strategies.chain import chain_energies, labellings, random_chain_energy

from lmbm_torch.energies.chain import PADDING
from lmbm_torch.inference.trees import chain_dp
from lmbm_torch.losses import chain_negative_log_likelihood, chain_structured_hinge


@given(chain_energies())
def test_losses_are_those_of_enumeration(energy):
    truth = chain_dp.sample(energy, 1, generator=torch.Generator().manual_seed(0))[0]
    likelihood = chain_negative_log_likelihood(energy, truth)
    hinge = chain_structured_hinge(energy, truth, slope=0.7)
    own = energy.score(truth)
    for example in range(energy.batch_size):
        labels, scores = labellings(energy, example)
        torch.testing.assert_close(likelihood[example], scores.logsumexp(0) - own[example])
        wrong = (labels != truth[example]).sum(1)
        torch.testing.assert_close(hinge[example], (scores + 0.7 * wrong).max() - own[example])
    assert (hinge >= 0).all()


def test_gradients_are_differences_of_counts():
    energy = random_chain_energy(1, ragged=False, batch_size=3)
    unary = energy.unary.requires_grad_()
    energy = replace(energy, unary=unary)
    truth = torch.zeros(3, 5, dtype=torch.int64)
    is_true = torch.nn.functional.one_hot(truth, 3)
    (by_likelihood,) = torch.autograd.grad(chain_negative_log_likelihood(energy, truth).sum(), unary)
    torch.testing.assert_close(by_likelihood, chain_dp.marginals(energy).states - is_true)
    (by_hinge,) = torch.autograd.grad(chain_structured_hinge(energy, truth).sum(), unary)
    worst = chain_dp.decode(energy.add_unary((1 - is_true).double())).labels
    torch.testing.assert_close(by_hinge, (torch.nn.functional.one_hot(worst, 3) - is_true).double())


def test_refusals():
    energy = random_chain_energy(2)
    for loss in (chain_negative_log_likelihood, chain_structured_hinge):
        with pytest.raises(ValueError, match=r"^labels: expected 0 to 2"):
            loss(energy, torch.full(energy.inside.shape, PADDING))
    with pytest.raises(ValueError, match="slope"):
        chain_structured_hinge(energy, torch.zeros(energy.inside.shape, dtype=torch.int64), slope=0.0)
