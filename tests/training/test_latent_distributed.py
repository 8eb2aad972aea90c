"""Two processes train a machine with hidden units as one does."""

from __future__ import annotations

import pytest
import torch
from problems.latent import latent_module, persistent_module
from problems.small import quiet_trainer, served, small_data


@pytest.mark.slow
def test_two_processes_reach_the_objective_of_one(tmp_path):
    weights, objectives = [], []
    for options in ({}, {"devices": 2, "strategy": "ddp_spawn"}):
        module = latent_module()
        trainer = quiet_trainer(tmp_path, 2, **options)
        trainer.fit(module, datamodule=served(small_data(), 60 // trainer.world_size))
        weights.append(module.model.weights())
        objectives.append(trainer.callback_metrics["train/objective"])
    torch.testing.assert_close(weights[0], weights[1])
    torch.testing.assert_close(objectives[0], objectives[1])


def test_persistent_chains_refuse_several_processes(tmp_path, monkeypatch):
    trainer = quiet_trainer(tmp_path, 1)
    monkeypatch.setattr(type(trainer), "world_size", 2)
    with pytest.raises(ValueError, match="devices: expected one process, got 2"):
        trainer.fit(persistent_module(), datamodule=served(small_data()))
