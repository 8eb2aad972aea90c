"""Training of a conditional RBM that restores images, shared by the tables of the 2017 paper.

Source: belief_propagation_in_crbms_2017, section 6. Prediction uses the inference of the training, with as
many iterations as in the epoch of least validation error; methods that sample use mean field.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint

from lmbm_torch.data.datamodule import MultilabelDataModule
from lmbm_torch.data.scaling import unscaled
from lmbm_torch.models import ConditionalRBM, RestrictedBoltzmannMachine
from lmbm_torch.training.callbacks.display import SeededEpochs
from lmbm_torch.training.callbacks.latent import (
    BestWeights,
    CentredGradients,
    ChangedPixels,
    IterationSchedule,
)
from lmbm_torch.training.latent import LatentModule, by_method
from lmbm_torch.training.structured import frobenius
from reproduce.crbm_problems import METHODS, problem


@dataclass(frozen=True, kw_only=True)
class Training:
    """The budget and settings of one training, the same for all methods.

    Args:
        train, validation, test: numbers of images; null for all.
        hidden: number of hidden units.
        epochs: at most; ``contrastive_epochs`` for the contrastive methods.
        patience: epochs without a better validation error after which training stops.
        momentum: of stochastic gradient descent.
        last_rate: the share of the learning rate to which it falls, batch by batch, along half a cosine; 1
            for a fixed rate.
        first_iters: iterations of inference in epoch 0; each further epoch has one more.
        init_std: initial standard deviation of couplings and hidden weights.
        centred: whether gradients are taken in centred coordinates of pixels and hidden units.
    """

    train: int | None
    validation: int | None
    test: int | None
    hidden: int
    epochs: int
    contrastive_epochs: int
    patience: int
    momentum: float
    last_rate: float
    first_iters: int
    init_std: float
    centred: bool
    accelerator: str

    def epochs_of(self, method: str) -> int:
        return self.contrastive_epochs if "CD" in method else self.epochs


class Curves(Callback):
    """The metrics of every epoch."""

    def __init__(self) -> None:
        self.epochs: list[dict[str, float]] = []

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        kept = ("train/objective", "train/converged", "val/hamming_loss")
        metrics = trainer.callback_metrics
        self.epochs.append({name: float(metrics[name]) for name in kept if name in metrics})


class FallingRate(Callback):
    """The learning rate falls, batch by batch along half a cosine, to ``last`` times its first value."""

    def __init__(self, last: float) -> None:
        self.last = last
        self.first: list[float] = []

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.first = [group["lr"] for group in trainer.optimizers[0].param_groups]

    def on_train_batch_start(self, trainer: Trainer, *_: Any) -> None:
        done = trainer.global_step / trainer.estimated_stepping_batches
        share = self.last + (1 - self.last) * (1 + math.cos(math.pi * done)) / 2
        for group, first in zip(trainer.optimizers[0].param_groups, self.first, strict=True):
            group["lr"] = share * first


def served(settings: Training, folder: str, task: str, batch_size: int, seed: int) -> MultilabelDataModule:
    """Return a task's data in batches."""
    data = problem(task, folder, (settings.train, settings.validation, settings.test))
    return MultilabelDataModule(
        data, scaling=unscaled, batch_size=batch_size, evaluation_batch_size=500, seed=seed
    )


def machine(settings: Training, data: MultilabelDataModule, method: str) -> ConditionalRBM:
    """Return a new model of the method's kind."""
    sizes = data.num_features, data.num_labels
    if method == "LR":
        return ConditionalRBM.logistic_regression(*sizes)
    return ConditionalRBM(*sizes, settings.hidden, init_std=settings.init_std)


def module_for(
    settings: Training,
    model: RestrictedBoltzmannMachine,
    method: str,
    learning_rate: float,
    damping: float | None = None,
    **options: Any,
) -> LatentModule:
    """Return the module that trains a model by a method; ``damping`` of its inference is for ablations."""
    inference = {"num_iters": settings.first_iters} | ({} if damping is None else {"damping": damping})
    optimizer = partial(torch.optim.SGD, lr=learning_rate, momentum=settings.momentum, fused=True)
    return by_method(model, **METHODS[method], inference=inference, optimizer=optimizer, **options)


def fit(
    settings: Training,
    module: LatentModule,
    data: MultilabelDataModule,
    num_epochs: int,
    seed: int,
    *more: Callback,
) -> dict[str, Any]:
    """Train, and restore the best epoch's weights; its validation error in percent, and the time taken."""
    curves = Curves()
    with TemporaryDirectory() as place, quiet():
        best = ModelCheckpoint(place, monitor="val/hamming_loss", save_on_train_epoch_end=True)
        stop = EarlyStopping("val/hamming_loss", patience=settings.patience, check_on_train_epoch_end=True)
        callbacks = [
            best,
            stop,
            BestWeights(),
            IterationSchedule(settings.first_iters),
            FallingRate(settings.last_rate),
            SeededEpochs(seed),
            curves,
            *more,
        ]
        started, started_cpu = time.perf_counter(), time.process_time()
        fitting = trainer(settings, max_epochs=num_epochs, callbacks=callbacks)
        fitting.fit(module, datamodule=data)
        seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - started_cpu
    assert best.best_model_score is not None
    return {
        "validation": 100 * float(best.best_model_score),
        "epoch": 1 + module.inference.num_iters - settings.first_iters,
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
        "epochs": curves.epochs,
    }


def centred_gradients(data: MultilabelDataModule) -> CentredGradients:
    """Return gradients centred at the means of the training part."""
    features, labels = torch.as_tensor(data.train_set.features), data.train_set.labels
    return CentredGradients(features.float().mean(0), labels.float().mean(0))


def errors(settings: Training, module: LatentModule, data: MultilabelDataModule) -> dict[str, float]:
    """Return errors on the test images in percent: over all pixels, and over the corrupted pixels."""
    with quiet():
        testing = trainer(settings, callbacks=[ChangedPixels()])
        scores = testing.test(module, datamodule=data, verbose=False)[0]
    return {"all": 100 * scores["test/hamming_loss"], "changed": 100 * scores["test/changed_pixel_error"]}


def train(
    settings: Training,
    folder: str,
    task: str,
    method: str,
    learning_rate: float,
    batch_size: int,
    seed: int,
    penalty: float = 0.0,
    **options: Any,
) -> tuple[dict[str, Any], LatentModule, MultilabelDataModule]:
    """Return a new model, trained.

    ``penalty`` is the strength of the Frobenius penalty for each image; ``options`` are those of
    :func:`module_for`.
    """
    seed_everything(seed, verbose=False)
    data = served(settings, folder, task, batch_size, seed)
    if penalty > 0:
        options["penalty"] = partial(frobenius, strength=penalty * len(data.train_rows))
    module = module_for(settings, machine(settings, data, method), method, learning_rate, **options)
    centring = [centred_gradients(data)] if settings.centred else []
    return fit(settings, module, data, settings.epochs_of(method), seed, *centring), module, data


def trainer(settings: Training, **options: Any) -> Trainer:
    """Return a silent trainer in one process."""
    return Trainer(
        accelerator=settings.accelerator,
        devices=1,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        **options,
    )


@contextmanager
def quiet() -> Iterator[None]:
    """Yield ignore a warning that Lightning causes in PyTorch."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*LeafSpec.* is deprecated", category=FutureWarning)
        yield
