"""Callbacks for all trainings: figures, charts, a check of the objective, and seeds; also loggers."""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils.tensorboard import SummaryWriter
from torch.utils.tensorboard.summary import hparams

from lmbm_torch.energies import DirectedEnergy, PairwiseEnergy
from lmbm_torch.extras import naming_extras
from lmbm_torch.inference.common.results import Decoding
from lmbm_torch.training.structured import StructuredModule
from lmbm_torch.viz.dependencies import coupling_heatmap, dependency_heatmap
from lmbm_torch.viz.quality import node_histogram

with naming_extras():
    from lightning.pytorch import Callback, LightningModule, Trainer
    from lightning.pytorch.callbacks import RichProgressBar
    from lightning.pytorch.loggers import TensorBoardLogger


MEASURES = ("test/exact_match", "test/hamming_loss", "test/sample_f1", "test/macro_f1", "fit/objective")
CHARTS = {
    "training": {
        "objective and its dual bound": ["Multiline", ["train/objective", "train/dual"]],
        "relative duality gap": ["Multiline", ["train/gap"]],
        "instances whose inference converged": ["Multiline", ["train/converged"]],
    },
    "decoding": {
        "share proven optimal": ["Multiline", ["val/proven_optimal", "test/proven_optimal"]],
        "search nodes for each instance": ["Multiline", ["val/mean_nodes", "test/mean_nodes"]],
    },
    "quality": {
        "exact match": ["Multiline", ["val/exact_match", "test/exact_match"]],
        "Hamming loss": ["Multiline", ["val/hamming_loss", "test/hamming_loss"]],
    },
}


class ProgressBar(RichProgressBar):
    """Lightning's progress bar without the logger's version number."""

    def get_metrics(self, trainer: Trainer, pl_module: LightningModule) -> dict[str, Any]:
        metrics = super().get_metrics(trainer, pl_module)
        return {name: value for name, value in metrics.items() if name != "v_num"}


class EvaluationCallback(Callback, ABC):
    """The base class of callbacks that collect decodings of validation and test batches, and show them."""

    @abstractmethod
    def gather(self, decoding: Any, batch: Any) -> None:
        """Add the decoding of a batch to the collection."""

    @abstractmethod
    def show(self, trainer: Trainer, pl_module: LightningModule, part: str) -> None:
        """Show the collected decodings of a part, ``"val"`` or ``"test"``, and clear the collection."""

    def on_validation_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, *_: Any
    ) -> None:
        self.gather(outputs, batch)

    def on_test_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, *_: Any
    ) -> None:
        self.gather(outputs, batch)

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.show(trainer, pl_module, "val")

    def on_test_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.show(trainer, pl_module, "test")


class DependencyHeatmap(Callback):
    """A callback that logs the figure ``fit/dependencies`` after a fit: the couplings of labels.

    The figure shows each parent's weight of a directed model, or each pair's coupling of an undirected model.
    There is no figure for couplings that depend on the features, for larger cliques, or for hidden units.
    """

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, StructuredModule)
        log_figure(trainer, "fit/dependencies", trainer.global_step, _dependencies, pl_module)


class VisitedNodes(EvaluationCallback):
    """A callback that logs histograms of search nodes in decoding, ``val/nodes`` and ``test/nodes``.

    The test also logs a figure with a logarithmic axis, ``test/nodes_per_instance``.
    """

    def __init__(self) -> None:
        self._nodes: list[Tensor] = []

    def gather(self, decoding: Decoding, batch: Any) -> None:
        if decoding.nodes is not None:
            self._nodes.append(decoding.nodes.cpu())

    def show(self, trainer: Trainer, pl_module: LightningModule, part: str) -> None:
        nodes = torch.cat(self._nodes) if self._nodes else torch.empty(0, device="cpu")
        self._nodes.clear()
        if len(nodes) and not trainer.sanity_checking:
            for writer in writers(trainer):
                writer.add_histogram(f"{part}/nodes", nodes, trainer.global_step)
            if part == "test":
                log_figure(trainer, "test/nodes_per_instance", trainer.global_step, node_histogram, nodes)


class FiniteObjective(Callback):
    """A callback to end the training before a step if the objective is infinite or NaN.

    The checkpoints are then from the last complete epoch.
    """

    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: Tensor) -> None:
        """Check that the objective is finite.

        Raises:
            FloatingPointError: the objective is NaN or infinite.
        """
        objective = float(loss.detach())
        if not math.isfinite(objective):
            raise FloatingPointError(
                f"objective: expected a finite number, got {objective} in epoch {trainer.current_epoch}, "
                f"step {trainer.global_step}: the learning rate may be too large, or the loss is "
                "not defined for these data; the last checkpoint can be used"
            )


class SeededEpochs(Callback):
    """A callback to set torch's seed, for instance for dropout, from the run's seed and the epoch.

    A resumed run then draws the same numbers as an uninterrupted run.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        # Set the seed at the first batch: before it, only uninterrupted runs draw a random number.
        if batch_idx == 0:
            # Add a multiple of the process number, so that processes draw different random numbers.
            torch.manual_seed(
                self.seed * 1_000_003 + trainer.current_epoch + 998_244_353 * trainer.global_rank
            )


def writers(trainer: Trainer) -> Iterator[SummaryWriter]:
    """Yield the writers of a run's TensorBoard logs; other processes than the first yield nothing."""
    for logger in trainer.loggers:
        if isinstance(logger, TensorBoardLogger) and trainer.is_global_zero:
            yield logger.experiment


def log_figure(trainer: Trainer, name: str, step: int, draw: Callable[..., Any], *content: Any) -> None:
    """Draw the figure ``draw(*content)`` and log it to TensorBoard, if there is a log and a figure."""
    for writer in writers(trainer):
        if (figure := draw(*content)) is not None:
            writer.add_figure(name, figure, step, close=False)


@torch.no_grad()
def _dependencies(module: StructuredModule) -> Any:
    if module.model.num_features is None:
        return None
    # Use features of 0: the figure shows only couplings that do not depend on the features.
    features = next(module.model.parameters()).new_zeros(1, module.model.num_features)
    energy = module.model.energy(features)
    if isinstance(energy, DirectedEnergy) and energy.parents.ndim == 2:
        return dependency_heatmap(energy.parents, module.label_names, energy.ordering.cpu())
    if isinstance(energy, PairwiseEnergy) and energy.pairwise.ndim == 2:
        return coupling_heatmap(energy.pairwise, module.label_names)
    return None


with naming_extras():
    from lightning.pytorch import Callback, LightningModule, Trainer, loggers


class GroupedScalars(loggers.TensorBoardLogger):
    """Lightning's TensorBoard logger without the chart of epoch numbers."""

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        super().log_metrics({name: value for name, value in metrics.items() if name != "epoch"}, step)


class Charts(Callback):
    """A callback to add charts of several scalars to the tab "Custom Scalars"."""

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        for writer in writers(trainer):
            writer.add_custom_scalars(CHARTS)


class Hyperparameters(Callback):
    """A callback to add a row of settings and test metrics to the tab "HParams", to compare runs.

    Args:
        values: settings by name. Settings of None are left out; a dotted name such as
            ``lmbm_torch.losses.local_hinge`` is shown as ``local_hinge``.
        measures: the names of the logged metrics to show.
    """

    def __init__(self, values: Mapping[str, Any], measures: tuple[str, ...] = MEASURES) -> None:
        self.values = {
            name: value.rpartition(".")[2] if isinstance(value, str) else value
            for name, value in values.items()
            if value is not None
        }
        self.measures = measures

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # Write 0 for each metric: only the names are needed here, the run logs the values later.
        for writer in writers(trainer):
            for record in hparams(self.values, dict.fromkeys(self.measures, 0.0)):
                assert writer.file_writer is not None
                writer.file_writer.add_summary(record)


def mlflow_logger(**options: Any) -> loggers.MLFlowLogger:
    """Make Lightning's logger for MLflow; it writes to a folder unless ``MLFLOW_TRACKING_URI`` is set.

    Args:
        options: arguments of the logger.

    Raises:
        ModuleNotFoundError: mlflow is not installed.
    """
    with naming_extras():
        import mlflow  # noqa: F401  # pyright: ignore[reportMissingImports]
    # Allow folders, which MLflow 3 refuses by default: databases need packages that mlflow-skinny lacks.
    os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
    return loggers.MLFlowLogger(**options)
