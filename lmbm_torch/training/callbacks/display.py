"""Callbacks of every run: figures and histograms for TensorBoard, a finite objective, and seeded epochs."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.tensorboard import SummaryWriter

from lmbm_torch.energies import DirectedEnergy, PairwiseEnergy
from lmbm_torch.extras import naming_extras
from lmbm_torch.inference.common.results import Decoding
from lmbm_torch.training.structured import StructuredModule
from lmbm_torch.viz import coupling_heatmap, dependency_heatmap, node_histogram

with naming_extras():
    from lightning.pytorch import Callback, LightningModule, Trainer
    from lightning.pytorch.callbacks import RichProgressBar
    from lightning.pytorch.loggers import TensorBoardLogger


class ProgressBar(RichProgressBar):
    """Lightning's progress bar without the version of the logger."""

    def get_metrics(self, trainer: Trainer, pl_module: LightningModule) -> dict[str, Any]:
        metrics = super().get_metrics(trainer, pl_module)
        return {name: value for name, value in metrics.items() if name != "v_num"}


class EvaluationCallback(Callback, ABC):
    """A callback with the decodings of validation and test batches, which subclasses show part by part."""

    @abstractmethod
    def gather(self, decoding: Any, batch: Any) -> None:
        """Add the decoding of a batch."""

    @abstractmethod
    def show(self, trainer: Trainer, pl_module: LightningModule, part: str) -> None:
        """Show and drop the decodings of a part, ``"val"`` or ``"test"``."""

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
    There is no figure of couplings that depend on the features, of larger cliques, or through hidden units.
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
    """A callback that ends the training before a step with an infinite or NaN objective.

    The checkpoints are then from the last complete epoch.
    """

    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: Tensor) -> None:
        """Check the objective.

        Raises:
            FloatingPointError: the objective is NaN or infinite.
        """
        objective = float(loss.detach())
        if not math.isfinite(objective):
            raise FloatingPointError(
                f"objective: expected a finite number, got {objective} in epoch {trainer.current_epoch}, "
                f"step {trainer.global_step}: look for a learning rate that is too large, or a loss that is "
                "not defined for these data; the last checkpoint is sound"
            )


class SeededEpochs(Callback):
    """A callback that seeds torch's random numbers, such as in dropout, by seed and epoch.

    A resumed run then draws the same numbers as an uninterrupted run.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        # After the epoch's start, where the data loader draws a number unless the run has just been resumed.
        if batch_idx == 0:
            # Processes draw different numbers; the first process draws as a single process would.
            torch.manual_seed(
                self.seed * 1_000_003 + trainer.current_epoch + 998_244_353 * trainer.global_rank
            )


def writers(trainer: Trainer) -> Iterator[SummaryWriter]:
    """Yield the TensorBoard logs of a run; only in the first of several processes."""
    for logger in trainer.loggers:
        if isinstance(logger, TensorBoardLogger) and trainer.is_global_zero:
            yield logger.experiment


def log_figure(trainer: Trainer, name: str, step: int, draw: Callable[..., Any], *content: Any) -> None:
    """Log the figure ``draw(*content)``, unless None; without a TensorBoard log nothing is drawn."""
    for writer in writers(trainer):
        if (figure := draw(*content)) is not None:
            writer.add_figure(name, figure, step, close=False)


@torch.no_grad()
def _dependencies(module: StructuredModule) -> Any:
    if module.model.num_features is None:
        return None
    # At zero features: couplings that depend on the input have another shape and no figure.
    features = next(module.model.parameters()).new_zeros(1, module.model.num_features)
    energy = module.model.energy(features)
    if isinstance(energy, DirectedEnergy) and energy.parents.ndim == 2:
        return dependency_heatmap(energy.parents, module.label_names, energy.ordering.cpu())
    if isinstance(energy, PairwiseEnergy) and energy.pairwise.ndim == 2:
        return coupling_heatmap(energy.pairwise, module.label_names)
    return None
