"""Lightning's loop with nothing around it, for benchmarks of what it runs."""

from __future__ import annotations

import logging
import tempfile
import warnings
from collections.abc import Sequence

from lightning.pytorch import Callback, LightningModule, Trainer

from lmbm_torch.data.datamodule import MultilabelDataModule


def train(
    module: LightningModule,
    data: MultilabelDataModule,
    callbacks: Sequence[Callback],
    epochs: int,
    device: str = "cpu",
) -> None:
    """Train on one device: no logs, checkpoints, validation or progress, and nothing is left on the disk."""
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        Trainer(
            accelerator="gpu" if device.startswith("cuda") else "cpu",
            devices=1,
            max_epochs=epochs,
            callbacks=[*callbacks],
            default_root_dir=folder,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            limit_val_batches=0,
        ).fit(module, datamodule=data)
