"""Callbacks for restricted Boltzmann machines: schedules, metrics of images, and figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lmbm_torch.checks import check_counts
from lmbm_torch.data.batches import Batch
from lmbm_torch.extras import naming_extras
from lmbm_torch.inference.common.results import Decoding
from lmbm_torch.metrics.pixels import ChangedPixelError
from lmbm_torch.models import RestrictedBoltzmannMachine
from lmbm_torch.training.callbacks.display import EvaluationCallback, log_figure, writers
from lmbm_torch.training.latent import LatentModule
from lmbm_torch.viz import image_rows, weight_filters

with naming_extras():
    from lightning.pytorch import Callback, LightningModule, Trainer
    from lightning.pytorch.callbacks import ModelCheckpoint


class IterationSchedule(Callback):
    """A schedule of ``first`` + epoch iterations of inference, where epochs are counted from 0.

    Belief propagation takes longer to converge as parameters grow (belief_propagation_in_crbms_2017,
    section 6, with ``first`` = 7).

    Raises:
        ValueError: ``first`` is below 1.
    """

    def __init__(self, first: int = 7) -> None:
        check_counts(first=first)
        self.first = first

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, LatentModule)
        pl_module.inference.num_iters = self.first + trainer.current_epoch


class BestWeights(Callback):
    """A callback to restore the best epoch's weights and number of iterations after a fit.

    So the test uses the model that early stopping chooses. The checkpoint comes from the trainer's first
    ``ModelCheckpoint`` with a ``monitor``; if there is none, the last weights stay.
    """

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        kept = (each for each in trainer.checkpoint_callbacks if isinstance(each, ModelCheckpoint))
        best = next((each.best_model_path for each in kept if each.monitor is not None), None)
        if best is None:
            return
        checkpoint = torch.load(Path(best), map_location=pl_module.device, weights_only=True)
        pl_module.load_state_dict(checkpoint["state_dict"])
        pl_module.on_load_checkpoint(checkpoint)


class ChangedPixels(EvaluationCallback):
    """A callback that logs ``val/`` and ``test/changed_pixel_error``; features are corrupted labels."""

    def __init__(self) -> None:
        self._error = ChangedPixelError()

    def gather(self, decoding: Decoding, batch: Batch) -> None:
        self._error.update(decoding.labels.cpu(), batch.labels.long().cpu(), batch.features.long().cpu())

    def show(self, trainer: Trainer, pl_module: LightningModule, part: str) -> None:
        pl_module.log(f"{part}/changed_pixel_error", self._error.compute(), sync_dist=True)
        self._error.reset()


class ImageFigure(Callback):
    """The base class of callbacks that show a number of images of equal size."""

    def __init__(self, height: int = 28, width: int = 28, count: int = 7) -> None:
        check_counts(height=height, width=width, count=count)
        self.shape = height, width
        self.count = count


class RestoredImages(ImageFigure):
    """A callback that logs clean, corrupted and predicted images as ``val/images`` (paper, Figure 2).

    Args:
        height, width: the size of the images.
        count: the number of images: the first images of the validation part.

    Raises:
        ValueError: a number is below 1.
    """

    def on_validation_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int, *_: Any
    ) -> None:
        if batch_idx or trainer.sanity_checking:
            return
        rows = {"clean": batch.labels, "corrupted": batch.features, "predicted": outputs.labels}
        shown = {name: images[: self.count].unflatten(1, self.shape) for name, images in rows.items()}
        log_figure(trainer, "val/images", trainer.current_epoch, image_rows, shown)


class WeightFilters(ImageFigure):
    """A callback that logs ``fit/filters`` after a fit: the couplings of each hidden unit with the pixels.

    Args:
        height, width: the size of the images.
        count: the number of hidden units that are shown, those with the largest weights.

    Raises:
        ValueError: a number is below 1.
    """

    def __init__(self, height: int = 28, width: int = 28, count: int = 64) -> None:
        super().__init__(height, width, count)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        model = pl_module.model
        assert isinstance(model, RestrictedBoltzmannMachine)
        coupling = model.coupling.detach()
        largest = coupling.square().sum(0).argsort(descending=True)[: self.count]
        filters = coupling[:, largest].T.unflatten(1, self.shape)
        log_figure(trainer, "fit/filters", trainer.current_epoch, weight_filters, filters)


class MessageConvergence(Callback):
    """A callback that logs a histogram of iterations of inference, ``train/iterations``, after each epoch.

    Instances that do not converge count with the largest number of iterations; ``train/converged`` is the
    share that converges.
    """

    def __init__(self) -> None:
        self._num_iters: list[Tensor] = []

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, outputs: Any, *_: Any) -> None:
        if outputs["status"] is not None:
            self._num_iters.append(outputs["status"].num_iters.cpu())

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._num_iters:
            for writer in writers(trainer):
                writer.add_histogram("train/iterations", torch.cat(self._num_iters), trainer.current_epoch)
        self._num_iters.clear()
