from __future__ import annotations

import pytest
import torch
from torch import nn

from lmbm_torch.inference.enumeration import exact
from lmbm_torch.models import ConditionalRBM, RestrictedBoltzmannMachine


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def test_energy_is_linear_in_the_features():
    model = ConditionalRBM(3, 4, 2, generator=seeded()).double()
    for parameter in model.parameters():
        nn.init.normal_(parameter, generator=seeded(1))
    x = torch.randn(5, 3, dtype=torch.float64, generator=seeded(2))
    energy = model(x)
    torch.testing.assert_close(energy.visible, x @ model.visible_weight.T + model.visible_bias)
    torch.testing.assert_close(energy.hidden, x @ model.hidden_weight.T + model.hidden_bias)
    torch.testing.assert_close(energy.coupling, model.coupling)
    assert model.weights().numel() == sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
def test_sparse_and_dense_features_agree():
    model = ConditionalRBM(3, 4, 2, init_std=1.0, generator=seeded())
    nn.init.normal_(model.visible_weight, generator=seeded(1))
    x = torch.tensor([[0.0, 2.0, 0.0], [1.0, 0.0, 0.0]])
    dense, sparse = model(x), model(x.to_sparse_csr())
    torch.testing.assert_close(sparse.visible, dense.visible)
    torch.testing.assert_close(sparse.hidden, dense.hidden)


def test_unconditional_energy_is_the_same_for_every_example():
    model = RestrictedBoltzmannMachine(4, 2, init_std=1.0, generator=seeded())
    log_partition = exact.log_partition(model(torch.zeros(3, 1)))
    torch.testing.assert_close(log_partition, exact.log_partition(model(torch.ones(1, 7))).expand(3))
    assert model.weights().numel() == 4 + 2 + 8


def test_hidden_units_start_apart_and_under_a_seed():
    first, second = (ConditionalRBM(3, 4, 2, generator=seeded(5)) for _ in range(2))
    assert torch.equal(first.weights(), second.weights())
    assert not torch.equal(first.coupling[:, 0], first.coupling[:, 1])
    assert not torch.equal(first.hidden_weight[0], first.hidden_weight[1])


def test_logistic_regression_leaves_labels_independent():
    model = ConditionalRBM.logistic_regression(3, 4)
    nn.init.normal_(model.visible_weight, generator=seeded())
    energy = model(torch.randn(5, 3, generator=seeded(1)))
    torch.testing.assert_close(exact.marginals(energy).visible, energy.visible.sigmoid())
    assert {name for name, parameter in model.named_parameters() if parameter.requires_grad} == {
        "visible_bias",
        "visible_weight",
    }


def test_log_odds_pass_as_they_are():
    model = ConditionalRBM.of_log_odds(4, 2, generator=seeded())
    x = torch.randn(5, 4, generator=seeded(1))
    torch.testing.assert_close(model(x).visible, x)
    assert model(x).hidden.std() > 0
    with pytest.raises(ValueError, match=r"x: expected shape \(at least 1, 4\), got \(5, 3\)"):
        model(x[:, :3])


def test_the_encoder_stands_in_front_and_learns():
    model = ConditionalRBM(2, 4, 2, encoder=nn.Linear(7, 2), init_std=1.0)
    energy = model(torch.randn(5, 7, generator=seeded()))
    energy.free_energy(torch.ones(5, 4)).sum().backward()
    assert model.encoder.weight.grad.abs().sum() > 0
    with pytest.raises(ValueError, match=r"x: expected shape \(at least 1, 2\), got \(5, 7\)"):
        ConditionalRBM(2, 4, 2)(torch.zeros(5, 7))


@pytest.mark.parametrize("sizes", [(0, 4, 2), (3, 0, 2), (3, 4, 0)])
def test_counts_are_refused_below_one(sizes):
    with pytest.raises(ValueError, match="at least 1, got 0"):
        ConditionalRBM(*sizes)
    with pytest.raises(ValueError, match="init_std"):
        ConditionalRBM(3, 4, 2, init_std=-1.0)
