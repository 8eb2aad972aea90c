"""Callbacks of every run: figures and histograms for TensorBoard, a finite objective, and seeded epochs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import RichProgressBar
from lightning.pytorch.loggers import TensorBoardLogger
from torch import Tensor
from torch.utils.tensorboard import SummaryWriter

from lmbm_torch.energies import PairwiseEnergy
from lmbm_torch.inference.results import Decoding
from lmbm_torch.models import BoltzmannMachine, SigmoidBeliefNetwork
from lmbm_torch.training.structured import StructuredModule
from lmbm_torch.viz import coupling_heatmap, dependency_heatmap, node_histogram


class ProgressBar(RichProgressBar):
    """Lightning's progress bar without the version of the logger."""

    def get_metrics(self, trainer: Trainer, pl_module: LightningModule) -> dict[str, Any]:
        metrics: dict[str, Any] = dict(super().get_metrics(trainer, pl_module))
        metrics.pop("v_num", None)
        return metrics


class DependencyHeatmap(Callback):
    """Logs the figure ``fit/dependencies`` after a fit: how the labels are coupled.

    Shown are the weights of all parents of a directed model, or the couplings of a Boltzmann machine's pairs.
    There is no figure if cliques are larger or hold features, or if hidden units couple the labels.
    """

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, StructuredModule)
        for writer in writers(trainer):
            figure = _dependencies(pl_module)
            if figure is not None:
                writer.add_figure("fit/dependencies", figure, trainer.global_step, close=False)


class VisitedNodes(Callback):
    """Logs histograms of the search nodes of decoding, ``val/nodes`` and ``test/nodes``.

    The test also logs a figure with a logarithmic axis, ``test/nodes_per_instance``.
    """

    def __init__(self) -> None:
        self._nodes: list[Tensor] = []

    def on_validation_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, *batch: Any
    ) -> None:
        self._collect(outputs)

    def on_test_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, *batch: Any
    ) -> None:
        self._collect(outputs)

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._write(trainer, "val/nodes")

    def on_test_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        nodes = self._write(trainer, "test/nodes")
        if len(nodes):
            for writer in writers(trainer):
                figure = node_histogram(nodes)
                writer.add_figure("test/nodes_per_instance", figure, trainer.global_step, close=False)

    def _collect(self, decoding: Decoding) -> None:
        if decoding.nodes is not None:
            self._nodes.append(decoding.nodes.cpu())

    def _write(self, trainer: Trainer, name: str) -> Tensor:
        nodes = torch.cat(self._nodes) if self._nodes else torch.empty(0)
        self._nodes.clear()
        if len(nodes) and not trainer.sanity_checking:
            for writer in writers(trainer):
                writer.add_histogram(name, nodes, trainer.global_step)
        return nodes


class FiniteObjective(Callback):
    """Ends a training whose objective is no longer finite, before the next step.

    The checkpoints are then those of the last epoch before.
    """

    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: Tensor) -> None:
        """Check the objective.

        Raises:
            FloatingPointError: it is NaN or infinite.
        """
        objective = float(loss.detach())
        if not math.isfinite(objective):
            raise FloatingPointError(
                f"objective: expected a finite number, got {objective} in epoch {trainer.current_epoch}, "
                f"step {trainer.global_step}: look for a learning rate that is too large, or a loss that is "
                "not defined for these data; the last checkpoint is sound"
            )


class SeededEpochs(Callback):
    """Seeds torch's random numbers, such as those of dropout, by the seed and the number of the epoch.

    So a resumed run draws the same numbers as an uninterrupted one.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        # After the epoch's start, where the data loader draws a number unless the run has just been resumed.
        if batch_idx == 0:
            torch.manual_seed(self.seed * 1_000_003 + trainer.current_epoch)


def writers(trainer: Trainer) -> Iterator[SummaryWriter]:
    """The TensorBoard logs of a run."""
    for logger in trainer.loggers:
        if isinstance(logger, TensorBoardLogger):
            yield logger.experiment


@torch.no_grad()
def _dependencies(module: StructuredModule) -> Any:
    """The figure, or None."""
    model, names = module.model, module.label_names
    if isinstance(model, SigmoidBeliefNetwork):
        parents = model.parent_weight * model.allowed_parents
        return dependency_heatmap(parents, names, model.ordering.cpu())
    if not isinstance(model, BoltzmannMachine):
        return None
    # These couplings do not depend on the input.
    energy = model.energy(model.feature_weight.new_zeros(1, model.feature_weight.shape[1]))
    if not isinstance(energy, PairwiseEnergy) or energy.pairwise.ndim > 2:
        return None
    return coupling_heatmap(energy.pairwise, names)
