"""A data set on which a fit takes milliseconds, and a trainer without anything around it."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from scipy.sparse import csr_array

from lmbm_torch.data import MultilabelData
from lmbm_torch.data.datamodule import MultilabelDataModule
from lmbm_torch.data.features import numbered
from lmbm_torch.data.scaling import unscaled
from lmbm_torch.losses import local_hinge
from lmbm_torch.models import BoltzmannMachine, SigmoidBeliefNetwork
from lmbm_torch.training.dual import DualModule
from lmbm_torch.training.gradient import GradientModule

NUM_FEATURES, NUM_LABELS = 5, 4
ORDERING = (2, 0, 3, 1)
NAMES = ("sun", "sea", "sand", "sky")
C = 0.5
Model = SigmoidBeliefNetwork | BoltzmannMachine


def small_data(*, missing: int = 0, sparse: bool = False, seed: int = 0) -> MultilabelData:
    """60 instances to train and 20 to test, labels that depend on features and on each other."""
    generator = np.random.default_rng(seed)
    features = generator.normal(size=(80, NUM_FEATURES))
    features[np.abs(features) < 0.4] = 0.0
    fields = features @ generator.normal(size=(NUM_FEATURES, NUM_LABELS))
    fields[:, 1] += 2 * np.sign(fields[:, 0])
    labels = (fields + generator.normal(size=fields.shape) > 0).astype(np.float64)
    labels.reshape(-1)[generator.choice(60 * NUM_LABELS, missing, replace=False)] = np.nan
    return MultilabelData(
        name="small",
        features=csr_array(features) if sparse else features,
        labels=labels,
        label_names=NAMES,
        feature_names=numbered("feature", NUM_FEATURES),
        train=np.arange(60),
        test=np.arange(60, 80),
    )


def served(data: MultilabelData, batch_size: int = 60, **options: Any) -> MultilabelDataModule:
    options = {"scaling": unscaled, "dtype": torch.float64, **options}
    return MultilabelDataModule(data, batch_size=batch_size, **options)


def network(degree: int = 2, encoder: torch.nn.Module | None = None) -> SigmoidBeliefNetwork:
    return SigmoidBeliefNetwork(NUM_FEATURES, NUM_LABELS, ORDERING, degree, encoder).double()


def machine(**options: Any) -> BoltzmannMachine:
    return BoltzmannMachine(NUM_FEATURES, NUM_LABELS, **options).double()


def dual_module(model: Model | None = None, **options: Any) -> DualModule:
    options = {"C": C, "tol": 1e-4, "label_names": NAMES, **options}
    return DualModule(network() if model is None else model, **options)


def gradient_module(model: Model | None = None, **options: Any) -> GradientModule:
    options = {"C": C, "loss": local_hinge, "optimizer": partial(torch.optim.Adam, lr=0.05), **options}
    return GradientModule(network() if model is None else model, **options)


def quiet_trainer(folder: Path, max_epochs: int, *callbacks: Callback, **options: Any) -> Trainer:
    """Nothing is logged to disk, printed or saved unless a callback does."""
    saves = any(isinstance(callback, ModelCheckpoint) for callback in callbacks)
    return Trainer(
        accelerator="cpu",
        enable_checkpointing=saves,
        max_epochs=max_epochs,
        default_root_dir=folder,
        callbacks=list(callbacks) or None,
        enable_progress_bar=False,
        enable_model_summary=False,
        log_every_n_steps=1,
        **{"logger": False, **options},
    )


def last_checkpoint(folder: Path) -> ModelCheckpoint:
    """Keeps ``last.ckpt`` of the last finished epoch."""
    return ModelCheckpoint(
        folder, filename="last", save_on_train_epoch_end=True, enable_version_counter=False
    )


def stop_at(gap: float) -> EarlyStopping:
    return EarlyStopping("train/gap", stopping_threshold=gap, patience=10**6, check_on_train_epoch_end=True)


class KilledError(Exception):
    """What stands for a signal that no process survives."""


class KillInEpoch(Callback):
    """Ends a run in the middle of an epoch."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        if trainer.current_epoch == self.epoch:
            raise KilledError


def weights_of(module: DualModule | GradientModule) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in module.model.state_dict().items()}


def assert_bitwise_equal(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> None:
    assert first.keys() == second.keys()
    for name, value in first.items():
        assert torch.equal(value, second[name]), name
