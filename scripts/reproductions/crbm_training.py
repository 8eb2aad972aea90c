"""One training of a conditional RBM that restores images: what the tables of the 2017 paper share.

Source: belief_propagation_in_crbms_2017, section 6. Prediction uses the inference of the training, with as
many iterations as in the epoch of least validation error; methods that have none use mean field. PCD is ours
to add: the paper holds it unsuited and shows no number.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from tempfile import TemporaryDirectory
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint

from lmbm_torch.data.corruptions import Flip, Occlude
from lmbm_torch.data.datamodule import MultilabelDataModule
from lmbm_torch.data.dataset import MultilabelData
from lmbm_torch.data.images import first_images, mnist, restoration, silhouettes
from lmbm_torch.data.scaling import unscaled
from lmbm_torch.inference import matrix_bp, mean_field
from lmbm_torch.inference.matching import MatchedInference, Routine
from lmbm_torch.losses import (
    bethe_negative_log_likelihood,
    contrastive_divergence,
    contrastive_perceptron,
    joint_structured_hinge,
    marginal_structured_hinge,
    mean_field_negative_log_likelihood,
)
from lmbm_torch.models import ConditionalRBM, RestrictedBoltzmannMachine
from lmbm_torch.training.callbacks.centring import CentredGradients
from lmbm_torch.training.callbacks.display import SeededEpochs
from lmbm_torch.training.callbacks.latent import BestWeights, ChangedPixels, IterationSchedule
from lmbm_torch.training.latent import LatentModule, PersistentModule
from lmbm_torch.training.penalties import frobenius

METHODS: dict[str, tuple[Any, Routine]] = {
    "LR": (mean_field_negative_log_likelihood, mean_field.marginals),
    "CD-1": (contrastive_divergence, mean_field.marginals),
    "CD-10": (partial(contrastive_divergence, num_steps=10), mean_field.marginals),
    "PCD-10": (None, mean_field.marginals),
    "CD-PercLoss": (partial(contrastive_perceptron, num_steps=10), mean_field.marginals),
    "MLE-MF": (mean_field_negative_log_likelihood, mean_field.marginals),
    "MLE-BP": (bethe_negative_log_likelihood, matrix_bp.marginals),
    "LSSVM": (joint_structured_hinge, matrix_bp.max_marginals),
    "MSSVM": (marginal_structured_hinge, matrix_bp.marginal_map),
}
"""The loss, and the inference for it and for prediction; PCD's loss is its module's."""


@dataclass(frozen=True, kw_only=True)
class Training:
    """How much is spent on one training, whatever the method.

    Args:
        train, validation, test: images; null for all.
        hidden: units.
        epochs: at most; of the contrastive methods ``contrastive_epochs``.
        patience: epochs without a better validation error after which training stops.
        momentum: of stochastic gradients.
        last_rate: the share of the learning rate to which it falls, batch by batch, along half a cosine; 1
            for a fixed one.
        first_iters: of inference in epoch 0; one more in each further epoch.
        init_std: of couplings and hidden weights at the start.
        centred: whether descent sees pixels and hidden units as deviations from their means.
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
    """What every epoch logged."""

    def __init__(self) -> None:
        self.epochs: list[dict[str, float]] = []

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        kept = ("train/objective", "train/converged", "val/hamming_loss")
        metrics = trainer.callback_metrics
        self.epochs.append({name: float(metrics[name]) for name in kept if name in metrics})


class FallingRate(Callback):
    """The learning rate at each batch of a training of so many epochs, from all of it to ``last`` of it."""

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


@cache
def problem(task: str, folder: str, counts: tuple[int | None, int | None, int | None]) -> MultilabelData:
    """The data of a task such as ``occluded MNIST 8x8`` or ``noisy Caltech 20 %``."""
    kind, source, amount = task.split(" ", 2)
    images = mnist(folder) if source == "MNIST" else silhouettes(folder)
    corruption = (
        Flip(float(amount.removesuffix(" %")) / 100)
        if kind == "noisy"
        else Occlude(int(amount.partition("x")[0]), value=0 if source == "MNIST" else 1)
    )
    return restoration(first_images(images, *counts), corruption)


def served(settings: Training, folder: str, task: str, batch_size: int, seed: int) -> MultilabelDataModule:
    """A task's data in batches."""
    data = problem(task, folder, (settings.train, settings.validation, settings.test))
    return MultilabelDataModule(
        data, scaling=unscaled, batch_size=batch_size, evaluation_batch_size=500, seed=seed
    )


def machine(settings: Training, data: MultilabelDataModule, method: str) -> ConditionalRBM:
    """A new model of the method's kind."""
    sizes = data.num_features, data.num_labels
    if method == "LR":
        return ConditionalRBM.logistic_regression(*sizes)
    return ConditionalRBM(*sizes, settings.hidden, init_std=settings.init_std)


def module_for(
    settings: Training,
    model: RestrictedBoltzmannMachine,
    method: str,
    learning_rate: float,
    inference: MatchedInference | None = None,
    **options: Any,
) -> LatentModule:
    """A method's module around a model; ``inference`` in the place of the method's own, for ablations."""
    loss, routine = METHODS[method]
    options |= {
        "model": model,
        "inference": inference or MatchedInference(routine, settings.first_iters),
        "optimizer": partial(torch.optim.SGD, lr=learning_rate, momentum=settings.momentum, fused=True),
    }
    return PersistentModule(num_steps=10, **options) if loss is None else LatentModule(loss=loss, **options)


def fit(
    settings: Training,
    module: LatentModule,
    data: MultilabelDataModule,
    num_epochs: int,
    seed: int,
    *more: Callback,
) -> dict[str, Any]:
    """Train, and take over the best epoch's weights; what validation and clock have shown, in percent."""
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
    """At the means of the training part."""
    features, labels = torch.as_tensor(data.train_set.features), data.train_set.labels
    return CentredGradients(features.float().mean(0), labels.float().mean(0))


def errors(settings: Training, module: LatentModule, data: MultilabelDataModule) -> dict[str, float]:
    """Of the test images, in percent: over all pixels, and over those that the corruption changed."""
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
    """A new model, trained.

    ``penalty`` is the strength of the Frobenius norm's, for each image; ``options`` are those of
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
    """One process, silent."""
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
    """Without a warning that Lightning causes in PyTorch."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*LeafSpec.* is deprecated", category=FutureWarning)
        yield
