"""One way to open whatever predicts: run directories, checkpoints, saved models and estimators."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import Any

from lmbm_torch import persistence
from lmbm_torch.persistence.stored import Stored
from lmbm_torch.prediction.chains import FittedChain
from lmbm_torch.prediction.fitted import FittedEstimator
from lmbm_torch.prediction.saved import SavedModel

Predictor = SavedModel | FittedEstimator
"""What predicts label vectors."""


def load(path: str | PathLike, trust: Sequence[str] = (), encoder: Any = None) -> Predictor | FittedChain:
    """Return the predictor of a run directory, a checkpoint, or a file of a predictor or an estimator.

    For arguments see :func:`lmbm_torch.load`.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: see :func:`lmbm_torch.load`; or an estimator of classes or of sequences, or a model alone.
    """
    found = persistence.load(path, encoder=encoder, trust=trust)
    if isinstance(found, Predictor | FittedChain):
        return found
    if not isinstance(found, Stored) or not hasattr(found, "get_params"):
        raise ValueError(
            f"path: {path}: expected a trained model or an estimator, got a {type(found).__name__} alone"
        )
    return FittedEstimator.of(found)
