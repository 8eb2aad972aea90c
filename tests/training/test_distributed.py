"""Two processes give the weights of one."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import pytest
import torch
from problems.small import gradient_module, machine, quiet_trainer, served, small_data

from lmbm_torch.data.batches import shuffled


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


def steps(num_processes: int, process: int, batch_size: int, num_rows: int):
    """Of every step of one of several processes its gradient, and the logged objective with its weight."""
    part = served(small_data()).train_set
    rows = part.__getitems__(range(num_rows))
    loader = shuffled(type(part)(rows.features.numpy(), rows.labels), batch_size, 0, num_processes, process)
    model = machine()
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.3, generator=torch.Generator().manual_seed(1))
    module = gradient_module(model)
    module._trainer = SimpleNamespace(train_dataloader=loader)
    logged = []
    module.log_means = lambda values, weight, **_: logged.append((values["train/objective"], weight))
    gradients = []
    for number, batch in enumerate(loader):
        module.zero_grad()
        module.training_step(batch, number).backward()
        gradients.append(torch.cat([weight.grad.flatten() for weight in model.parameters()]))
    values, weights = zip(*logged, strict=True)
    return torch.stack(gradients), torch.stack(values), torch.tensor(weights)


@pytest.mark.parametrize(
    ("num_processes", "batch_size", "num_rows"),
    [(2, 4, 16), (2, 4, 15), (2, 4, 17), (3, 2, 13), (3, 2, 14), (4, 8, 3)],
)
def test_every_row_counts_once_whatever_their_number(num_processes, batch_size, num_rows):
    """Also those of a last batch of which some processes have fewer rows, or none."""
    shares = [steps(num_processes, process, batch_size, num_rows) for process in range(num_processes)]
    gradients, values, weights = (torch.stack(parts) for parts in zip(*shares, strict=True))
    alone = steps(1, 0, num_processes * batch_size, num_rows)
    torch.testing.assert_close(gradients.mean(0), alone[0])
    assert torch.equal(weights.sum(0), alone[2])
    torch.testing.assert_close((values * weights).sum(0) / weights.sum(0), alone[1])
