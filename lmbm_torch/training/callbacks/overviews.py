"""Loggers, and overviews in TensorBoard: charts of one run, and a table of settings and measures of runs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from torch.utils.tensorboard.summary import hparams

from lmbm_torch.extras import naming_extras
from lmbm_torch.training.callbacks.display import writers

with naming_extras():
    from lightning.pytorch import Callback, LightningModule, Trainer, loggers


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
        values: settings by name. Settings of None are left out; of a path like
            ``lmbm_torch.losses.local_hinge`` only the last name is shown.
        measures: the tags of logged scalars.
    """

    def __init__(self, values: Mapping[str, Any], measures: tuple[str, ...] = MEASURES) -> None:
        self.values = {
            name: value.rpartition(".")[2] if isinstance(value, str) else value
            for name, value in values.items()
            if value is not None
        }
        self.measures = measures

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # Only the names are needed here: the run logs the values under these tags.
        for writer in writers(trainer):
            for record in hparams(self.values, dict.fromkeys(self.measures, 0.0)):
                assert writer.file_writer is not None
                writer.file_writer.add_summary(record)


def mlflow_logger(**options: Any) -> loggers.MLFlowLogger:
    """Make Lightning's logger for MLflow, to a folder unless ``MLFLOW_TRACKING_URI`` names a server.

    Args:
        options: arguments of the logger.

    Raises:
        ModuleNotFoundError: mlflow is not installed.
    """
    with naming_extras():
        import mlflow  # noqa: F401  # pyright: ignore[reportMissingImports]
    # MLflow 3 refuses folders by default, but its databases need packages that mlflow-skinny does not have.
    os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
    return loggers.MLFlowLogger(**options)
