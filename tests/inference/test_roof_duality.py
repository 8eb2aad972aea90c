"""Roof duality against enumeration and the linear programme whose value it is."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from strategies.directed import random_known
from strategies.pairwise import random_forest_energy, random_pairwise_energy
from sweeps import thorough

from lmbm_torch.inference.enumeration import exact
from lmbm_torch.inference.relaxations import lp_relaxation
from lmbm_torch.inference.relaxations.persistency import Settled, settle_persistent
from lmbm_torch.kernels.search import roof_duality

STRENGTHS = (0.01, 0.3, 1.0, 100.0)


def roof_bound(energy):
    """The bound of each example by the kernel's messages: all fields agree, and all pairs."""
    found = []
    for row in range(energy.batch_size):
        fields = energy.unary[row].numpy()
        couplings = energy.pairwise.expand(energy.batch_size, -1, -1)[row].numpy()
        messages = roof_duality.messages(fields, couplings, np.zeros(len(fields)), 1e-12)
        agreed = np.abs(fields + messages.sum(1)).sum() + np.abs(couplings).sum() / 2
        found.append(float(energy.constant.expand(energy.batch_size)[row]) + agreed)
    return torch.tensor(found, dtype=torch.float64)


@pytest.mark.parametrize("coupling", STRENGTHS)
@pytest.mark.parametrize("seed", thorough(range(50), 4))
def test_no_labelling_scores_above_and_every_best_one_agrees(seed, coupling):
    labels = 1 + seed % 12
    energy = random_pairwise_energy(
        seed, labels, 5, coupling=coupling, per_example=bool(seed % 2), density=0.6
    )
    slack = 1e-11 * (1 + energy.unary.abs().sum(1) + energy.pairwise.abs().sum((-2, -1)))
    assert (roof_bound(energy) >= exact.decode(energy).objective - slack).all()
    for known in (torch.full_like(energy.unary, torch.nan), random_known(seed, energy)):
        found = settle_persistent(Settled.nothing(energy, known)).known
        best = exact.decode(energy, known=known)
        decided = ~found.isnan()
        assert torch.equal(found[decided], best.labels[decided].double())
        assert decided[~known.isnan()].all()


@pytest.mark.parametrize("labels", [6, 30])
@pytest.mark.parametrize("coupling", [0.02, 0.1, 1.0])
def test_the_bound_is_that_of_the_linear_programme(labels, coupling):
    energy = random_pairwise_energy(0, labels, 4, coupling=coupling)
    expected = lp_relaxation.decode(energy).bound
    torch.testing.assert_close(roof_bound(energy), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("seed", thorough(range(20), 3))
def test_forests_and_attractive_couplings_are_solved(seed):
    forest = random_forest_energy(seed, 12, 5, coupling=2.0)
    attractive = random_pairwise_energy(seed, 12, 5)
    attractive = type(attractive)(attractive.unary, attractive.pairwise.abs(), attractive.constant)
    for energy in (forest, attractive):
        nothing = torch.full_like(energy.unary, torch.nan)
        found = settle_persistent(Settled.nothing(energy, nothing)).known
        best = exact.decode(energy)
        assert torch.equal(found, best.labels.double())
        torch.testing.assert_close(roof_bound(energy), best.objective)


def test_the_model_that_is_left_has_the_same_best_labellings():
    energy = random_pairwise_energy(1, 9, 30, coupling=0.5, per_example=True, density=0.5)
    known = random_known(1, energy, share=0.2)
    left = settle_persistent(Settled.nothing(energy, known))
    decided = ~left.known.isnan()
    assert ((~known.isnan()) <= decided).all()
    assert 0 < decided.double().mean() < 1
    best = exact.decode(energy, known=known)
    assert torch.equal(left.known[decided], best.labels[decided].double())
    torch.testing.assert_close(left.energy.score(best.labels), best.objective)
    assert (left.energy.unary[decided] == 0).all()
