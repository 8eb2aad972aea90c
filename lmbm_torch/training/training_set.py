"""The training part that a trainer serves, seen whole."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lightning.pytorch import LightningModule
from torch.utils.data import DistributedSampler


def training_batches(module: LightningModule) -> Iterator[Any]:
    """This process's share of the training part, on the module's device; meanwhile the module is evaluating.

    The order is that of epoch 0, however many epochs have been trained and in how many sittings: sums over
    the batches are the same to the last digit after a resumed run as after an undisturbed one.
    """
    loader: Any = module.trainer.train_dataloader
    if isinstance(loader.sampler, DistributedSampler):
        loader.sampler.set_epoch(0)
    was_training = module.training
    module.eval()
    try:
        for batch in loader:
            yield module.transfer_batch_to_device(batch, module.device, 0)
    finally:
        module.train(was_training)
