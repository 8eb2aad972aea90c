"""Runs told to MLflow."""

from __future__ import annotations

import os
from typing import Any

from lmbm_torch.extras import naming_extras

with naming_extras():
    from lightning.pytorch import loggers


def mlflow_logger(**options: Any) -> loggers.MLFlowLogger:
    """Lightning's logger for MLflow, to a folder where ``MLFLOW_TRACKING_URI`` names no server.

    Args:
        options: of the logger.

    Raises:
        ModuleNotFoundError: mlflow is not installed.
    """
    with naming_extras():
        import mlflow  # noqa: F401  # pyright: ignore[reportMissingImports]
    # MLflow 3 refuses folders unless asked; its databases need what mlflow-skinny comes without.
    os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
    return loggers.MLFlowLogger(**options)
