"""Chains with all positions together: what the loop over positions finds, in the place of a device."""

from __future__ import annotations

import pytest
import torch
from contracts.results import assert_same, tensors_of
from strategies.chain import random_chain_energy

from lmbm_torch.inference.trees import chain_dp, chain_scans, chain_steps

FORMS = {
    "shared": {"max_length": 6, "num_states": 3},
    "own": {"max_length": 9, "num_states": 2, "per_step": True},
    "forbidden": {"max_length": 7, "num_states": 4, "forbidden": 0.3},
    "two positions": {"max_length": 2, "num_states": 3},
    "long": {"max_length": 33, "num_states": 2},
}


@pytest.fixture
def as_on_a_device(monkeypatch):
    """From the first call on, values do not decide what is computed."""
    calls = []
    scan = chain_scans._scan

    def counted(*arguments):
        calls.append(1)
        return scan(*arguments)

    def start():
        monkeypatch.setattr(chain_steps, "is_on_host", lambda tensor: False)
        monkeypatch.setattr(chain_scans, "_scan", counted)
        return calls

    return start


@pytest.mark.parametrize("form", FORMS)
def test_all_positions_together_are_one_after_another(form, as_on_a_device):
    energy = random_chain_energy(0, **FORMS[form])
    routines = (chain_dp.marginals, chain_dp.decode)
    expected = [tensors_of(routine(energy)) for routine in routines]
    calls = as_on_a_device()
    for routine, wanted in zip(routines, expected, strict=True):
        assert_same(tensors_of(routine(energy)), wanted, rtol=1e-11, atol=1e-11)
    assert len(calls) == (0 if form == "two positions" else 3)


@pytest.mark.parametrize("form", FORMS)
def test_gradients_are_the_marginals(form, as_on_a_device):
    energy = random_chain_energy(1, **FORMS[form])
    unary = energy.unary.clone().requires_grad_()
    nodes = chain_dp.marginals(energy).states
    as_on_a_device()
    found = chain_dp.log_partition(type(energy)(unary, energy.transition, energy.lengths))
    (gradient,) = torch.autograd.grad(found.sum(), unary)
    torch.testing.assert_close(gradient, nodes, rtol=1e-10, atol=1e-10)


def test_chains_without_a_labelling_are_refused(as_on_a_device):
    energy = random_chain_energy(0, 5, batch_size=3, num_states=2, ragged=False)
    energy.unary[1, 3] = -torch.inf
    as_on_a_device()
    with pytest.raises(ValueError, match="got none for 1 chains, the first in row 1"):
        chain_dp.log_partition(energy)


def test_what_does_not_fit_goes_one_after_another():
    assert chain_scans.fits(64, 99, 26, torch.float32) is False
    assert chain_scans.fits(64, 13, 26, torch.float32) is True
    assert chain_scans.fits(1, 1, 2, torch.float32) is False
