"""Log-likelihoods and samples of machines without input, as a run logs them."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import product

import numpy as np
import pytest
import torch
from lightning.pytorch.loggers import TensorBoardLogger
from problems.latent import latent_module
from problems.small import quiet_trainer, served, small_data
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from lmbm_torch.data.images import BinaryImages, alone
from lmbm_torch.inference.common.limits import LIMITS
from lmbm_torch.inference.enumeration import exact
from lmbm_torch.inference.sampling import log_likelihood
from lmbm_torch.models import RestrictedBoltzmannMachine
from lmbm_torch.training.callbacks.latent import LogLikelihood, SampledImages
from lmbm_torch.training.parallel_chains import ParallelChainsModule

NAMES = product(("upper", "lower"), ("", "_error", "_size"))
SIDES = {f"val/log_likelihood_{side}{what}" for side, what in NAMES}


def bars(validation: int) -> BinaryImages:
    pixels = np.zeros((40, 4, 4), np.uint8)
    for number, image in enumerate(pixels):
        image[:, number % 3 : number % 3 + 2] = 1
    rows = np.arange(40)
    return BinaryImages("bars", pixels, rows[validation:], rows[:validation], rows[:0])


@pytest.fixture(params=[10, 0])
def logged(tmp_path, request):
    """A module after four epochs, its data, and what was logged after the first, second and fourth."""
    model = RestrictedBoltzmannMachine(16, 6, 0.1).double()
    module = ParallelChainsModule(model, C=1.0, num_chains=20, optimizer=partial(torch.optim.SGD, lr=0.1))
    callbacks = LogLikelihood(every=2), SampledImages(4, 4, count=9, every=2)
    logger = TensorBoardLogger(tmp_path, name="", version="log", default_hp_metric=False)
    data = served(alone(bars(request.param)), 30)
    quiet_trainer(tmp_path, 4, *callbacks, logger=logger, limit_val_batches=0).fit(module, datamodule=data)
    events = EventAccumulator(str(tmp_path / "log"), size_guidance={"scalars": 0, "images": 0})
    events.Reload()
    return module, data, events


def test_both_sides_are_logged_together(logged):
    module, data, events = logged
    assert {*events.Tags()["scalars"]} >= SIDES
    assert all(len(events.Scalars(name)) == 3 for name in SIDES)
    labels = (data.validation_set if len(data.validation_set) else data.train_set).labels
    with torch.no_grad():
        energy = module.model(labels[:1])
        true = float((-energy.free_energy(labels) - exact.log_partition(energy)).mean())
    for side in ("upper", "lower"):
        assert events.Scalars(f"val/log_likelihood_{side}")[-1].value == pytest.approx(true, rel=1e-5)
        assert events.Scalars(f"val/log_likelihood_{side}_error")[-1].value == 0


def test_samples_are_logged(logged):
    *_, events = logged
    assert [event.step for event in events.Images("train/samples")] == [0, 1, 3]


def test_settings_reach_the_estimates(tmp_path, monkeypatch):
    monkeypatch.setattr(log_likelihood, "LIMITS", replace(LIMITS, enumerable=0))
    module = ParallelChainsModule(
        RestrictedBoltzmannMachine(16, 6, 0.5).double(), C=1.0, optimizer=partial(torch.optim.SGD, lr=0.1)
    )
    trainer = quiet_trainer(tmp_path, 1, limit_val_batches=0)
    trainer.fit(module, datamodule=served(alone(bars(10)), 30))
    settings = {"num_temperatures": 20, "num_examples": 5}
    first, second, other = (
        LogLikelihood(seed=seed, num_chains=chains, **settings).bounds(trainer, module)
        for seed, chains in ((0, 30), (0, 30), (1, 30))
    )
    assert first == second != other
    assert 1 < first.upper.effective_size <= 30


def test_refusals(tmp_path):
    for make in (LogLikelihood, SampledImages):
        with pytest.raises(ValueError, match="every: expected"):
            make(every=0)
        with pytest.raises(ValueError, match="model: expected a machine without input, got ConditionalRBM"):
            quiet_trainer(tmp_path, 1, make()).fit(latent_module("cd"), datamodule=served(small_data()))
