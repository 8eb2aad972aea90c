"""Losses of relaxed labels by their configurations: models train through them."""

from __future__ import annotations

from importlib import import_module

import pytest
import torch
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate

from lmbm_torch.cli.configuration import CONFIGURATION
from lmbm_torch.models import BoltzmannMachine


def composed(*overrides):
    with initialize_config_dir(CONFIGURATION, version_base="1.3"):
        return compose("train", overrides=["experiment=seven_segment_lmbm", *overrides])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("loss", "epochs", "exact_match"), [("relaxed_structured_hinge", 3, 0.6), ("sparse_map", 2, 0.5)]
)
def test_a_boltzmann_machine_learns_seven_segments(loss, epochs, exact_match, monkeypatch, tmp_path):
    config = composed(
        f"loss={loss}",
        "inference=map",
        "coupling_penalty=1",
        f"trainer.max_epochs={epochs}",
        "trainer.enable_progress_bar=false",
        "callbacks.progress_bar=null",
        f"paths.run={tmp_path / 'run'}",
    )
    assert import_module("lmbm_torch.cli.jobs").start(config)["test/exact_match"] >= exact_match


@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword")
@pytest.mark.filterwarnings("ignore:invalid escape sequence")
def test_the_loss_of_the_quadratic_programme_reaches_the_weights():
    loss = instantiate(composed("loss=relaxed_squared_error").loss)
    model = BoltzmannMachine(2, 3)
    value = loss(model(torch.tensor([[1.0, -0.5]])), torch.tensor([[1, 0, 1]]))
    # Weights of zero say ½ of every label.
    torch.testing.assert_close(value, torch.tensor([0.75]), rtol=0, atol=1e-5)
    value.sum().backward()
    assert (model.feature_weight.grad.abs() > 0).all()
