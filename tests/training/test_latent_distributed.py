"""Two processes train a machine with hidden units as one does."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from problems.latent import latent_module, persistent_module
from problems.small import last_checkpoint, quiet_trainer, served, small_data

from lmbm_torch.training.callbacks.display import SeededEpochs


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


@pytest.mark.slow
def test_two_processes_keep_their_own_chains(tmp_path):
    options = {"devices": 2, "strategy": "ddp_spawn"}
    folder = last_checkpoint(tmp_path)
    module = persistent_module()
    trainer = quiet_trainer(tmp_path, 2, folder, SeededEpochs(0), **options)
    trainer.fit(module, datamodule=served(small_data(), 10))
    chains = torch.load(tmp_path / "last.ckpt", weights_only=True)["chains"]
    assert chains.shape == (2, 60, 4)
    # An instance that one process never saw is where it started; half of them are moved by each in an epoch.
    assert not torch.equal(chains[0], chains[1])
    trainer = quiet_trainer(tmp_path, 3, last_checkpoint(tmp_path), SeededEpochs(0), **options)
    trainer.fit(persistent_module(), datamodule=served(small_data(), 10), ckpt_path=tmp_path / "last.ckpt")
    assert torch.load(tmp_path / "last.ckpt", weights_only=True)["chains"].shape == (2, 60, 4)


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_a_process_goes_on_from_its_own_chains(tmp_path, rank):
    """Of two in a checkpoint, whatever the number of those that go on."""
    module = persistent_module()
    trainer = quiet_trainer(tmp_path, 1)
    saved = torch.randint(0, 2, (2, 60, 4), dtype=torch.uint8)
    module.chains = saved
    module._trainer = SimpleNamespace(
        global_rank=rank, world_size=3, strategy=trainer.strategy, should_stop=False, callback_metrics={}
    )
    module.on_fit_start()
    assert torch.equal(module.chains, saved[rank % 2])
    # Gathering from other processes stands in for their own.
    module.all_gather = lambda chains: torch.stack([chains, 1 - chains])
    checkpoint = {}
    module.on_save_checkpoint(checkpoint)
    assert torch.equal(checkpoint["chains"], torch.stack([module.chains, 1 - module.chains]))
