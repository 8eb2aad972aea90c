"""Two processes give the weights of one."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from problems.small import gradient_module, machine, quiet_trainer, served, small_data


@pytest.mark.slow
def test_two_processes_share_each_batch(tmp_path):
    weights, objectives = [], []
    for options in ({}, {"devices": 2, "strategy": "ddp_spawn"}):
        module = gradient_module(machine(), optimizer=partial(torch.optim.SGD, lr=0.5))
        trainer = quiet_trainer(tmp_path, 2, **options)
        trainer.fit(module, datamodule=served(small_data(), 60 // trainer.world_size))
        weights.append(module.model.weights())
        objectives.append(trainer.callback_metrics["train/objective"])
    assert weights[0].any()
    torch.testing.assert_close(weights[0], weights[1])
    torch.testing.assert_close(objectives[0], objectives[1])
