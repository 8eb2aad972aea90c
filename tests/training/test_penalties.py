"""Penalties tell the couplings of machines with hidden units from their other weights."""

from __future__ import annotations

import pytest
import torch
from problems.small import gradient_module

from lmbm_torch.models import ConditionalRBM, HiddenMarkov, RestrictedBoltzmannMachine
from lmbm_torch.models.hidden_markov import Gaussian
from lmbm_torch.training.structured import quadratic


@pytest.mark.parametrize("make", [lambda: ConditionalRBM(2, 4, 3), lambda: RestrictedBoltzmannMachine(4, 3)])
def test_couplings_cost_what_they_are_said_to(make):
    model = make().double()
    for weight in model.parameters():
        torch.nn.init.normal_(weight, generator=torch.Generator().manual_seed(0))
    costs = {name: weight.square().sum() for name, weight in model.named_parameters()}
    joining = costs.pop("coupling")
    torch.testing.assert_close(quadratic(model, 7.0), (sum(costs.values()) + 7 * joining) / 2)


def test_models_of_other_kinds_are_refused():
    with pytest.raises(TypeError, match=r"model: expected an lmbm_torch.models.Model, got HiddenMarkov"):
        gradient_module(HiddenMarkov(Gaussian(2, 3)))
