"""Every model comes back from its file: energy, types and frozen weights; encoders are the user's to give."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from lmbm_torch import load, save
from lmbm_torch.energies import TiedCliques
from lmbm_torch.models import (
    BoltzmannMachine,
    ConditionalRBM,
    HiddenMarkov,
    RestrictedBoltzmannMachine,
    SigmoidBeliefNetwork,
)
from lmbm_torch.models.hidden_markov import Bernoulli, Gaussian, Multinomial

TIED = TiedCliques(
    3, ((0, 1), (1, 2), (2,)), groups=(0, 0, 1), coefficients=(1.0, -0.5, 2.0), columns=(None, 1, 0)
)
MODELS = {
    "network": lambda: SigmoidBeliefNetwork(2, 4, ordering=[2, 0, 3, 1], degree=3),
    "pairs": lambda: BoltzmannMachine(2, 3),
    "cliques": lambda: BoltzmannMachine(2, 4, [[0, 1, 2], [2, 3]], groups=[0, 0], bias=False),
    "tied": lambda: BoltzmannMachine(2, 3, TIED),
    "conditional": lambda: ConditionalRBM(2, 3, 4),
    "independent": lambda: ConditionalRBM.logistic_regression(2, 3),
    "log-odds": lambda: ConditionalRBM.of_log_odds(2, 4),
    "unconditional": lambda: RestrictedBoltzmannMachine(3, 4),
    "gaussian": lambda: HiddenMarkov(Gaussian(3, 2)),
    "bernoulli": lambda: HiddenMarkov(Bernoulli(3, 2)),
    "multinomial": lambda: HiddenMarkov(Multinomial(3, 2)),
}


def randomised(model: nn.Module, dtype: torch.dtype = torch.float64) -> nn.Module:
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(torch.randn(weight.shape, generator=generator))
    return model.to(dtype)


def tensors_of(energy) -> list[torch.Tensor]:
    return [value for value in vars(energy).values() if isinstance(value, torch.Tensor)]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_model_comes_back(tmp_path, name, dtype):
    model = randomised(MODELS[name](), dtype)
    save(model, tmp_path / "model.safetensors")
    found = load(tmp_path / "model.safetensors")
    assert type(found) is type(model)
    assert not found.training
    is_chain = isinstance(model, HiddenMarkov)
    x = torch.ones(5, 4, 2, dtype=dtype) if is_chain else torch.ones(5, 2, dtype=dtype)
    for first, second in zip(tensors_of(model(x)), tensors_of(found(x)), strict=True):
        assert first.dtype == second.dtype
        assert torch.equal(first, second)
    frozen = {name for name, weight in model.named_parameters() if not weight.requires_grad}
    assert {name for name, weight in found.named_parameters() if not weight.requires_grad} == frozen


@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_loaded_on_the_cpu_whatever_the_default_device(tmp_path, name):
    save(MODELS[name](), tmp_path / "model.safetensors")
    with torch.device("meta"):
        found = load(tmp_path / "model.safetensors")
    assert {each.device.type for each in (*found.parameters(), *found.buffers())} == {"cpu"}


def encoder() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 2), nn.BatchNorm1d(2), nn.ReLU())


@pytest.mark.parametrize("make", [SigmoidBeliefNetwork, BoltzmannMachine])
def test_an_encoder_is_the_callers_to_give(tmp_path, make):
    model = randomised(make(2, 3, encoder=encoder())).eval()
    path = tmp_path / "model.safetensors"
    save(model, path)
    found = load(path, encoder=encoder())
    x = torch.randn(4, 5, dtype=torch.float64)
    assert torch.equal(found(x).unary, model(x).unary)
    with pytest.raises(ValueError, match=r"encoder: expected the encoder of the training"):
        load(path)
    with pytest.raises(ValueError, match=r"(?s)model\.safetensors: .*encoder"):
        load(path, encoder=nn.Linear(5, 2))
    save(make(2, 3), tmp_path / "plain")
    with pytest.raises(ValueError, match="encoder: expected None"):
        load(tmp_path / "plain", encoder=encoder())


def test_a_model_without_input_takes_no_encoder(tmp_path):
    save(RestrictedBoltzmannMachine(3, 4), tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match="encoder: expected None"):
        load(tmp_path / "model.safetensors", encoder=encoder())


def test_other_modules_are_refused(tmp_path):
    with pytest.raises(TypeError, match=r"content: expected a model, .* of lmbm_torch, got Linear of torch"):
        save(nn.Linear(2, 2), tmp_path / "model.safetensors")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.cuda
def test_a_model_saved_on_cuda_loads_on_the_cpu(tmp_path):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    model = randomised(SigmoidBeliefNetwork(2, 4)).cuda()
    save(model, tmp_path / "model.safetensors")
    found = load(tmp_path / "model.safetensors")
    assert {weight.device.type for weight in found.state_dict().values()} == {"cpu"}
    for name, weight in model.state_dict().items():
        assert torch.equal(weight.cpu(), found.state_dict()[name])
