"""One way to load whatever predicts: run directories, checkpoints, saved models and estimators."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

from lmbm_torch.files import CONFIG
from lmbm_torch.models import archives
from lmbm_torch.persistence.trusted import SavedConfiguration, import_trusted
from lmbm_torch.prediction import fitted
from lmbm_torch.prediction.decoders import OwnDecoder
from lmbm_torch.prediction.fitted import FittedEstimator
from lmbm_torch.prediction.saved import MODEL, SavedModel, load_model

ESTIMATOR = "an estimator"

Predictor = SavedModel | FittedEstimator


def load(path: str | PathLike, trust: Sequence[str] = ()) -> Predictor:
    """The trained model, with all that predicting takes, of a run directory or of a file.

    Nothing that a file or a directory names is imported or called but parts of this library and of torch, see
    :mod:`lmbm_torch.persistence.trusted`. The file of the model is read first: the configuration is asked for
    an encoder or a decoder only where the file says that the model has one that it does not hold.

    Args:
        path: a run directory, a checkpoint, or a file of a saved model or estimator.
        trust: classes and functions of the caller's own that the model, its encoder or its decoder are made
            of, by their import paths, such as ``"mine.Encoder"``; they are imported.

    Raises:
        FileNotFoundError: there is none.
        ValueError: a file that cannot be read, one outside a run directory that needs an encoder, an
            estimator of classes or of sequences, or a name that is not trusted; the message says which.
    """
    import_trusted(trust)
    if Path(path).is_dir():
        return _of_run(Path(path), trust)
    holds = archives.peek(path)
    if holds == fitted.HOLDS:
        return fitted.load_fitted(path)
    if holds != ESTIMATOR:
        return load_model(path)
    # Models do not need scikit-learn.
    from lmbm_torch import estimators

    return FittedEstimator.of(estimators.load(path))


def _of_run(folder: Path, trust: Sequence[str]) -> Predictor:
    file = folder / MODEL
    if archives.peek(file) == fitted.HOLDS:
        return fitted.load_fitted(file)
    # Read where it is needed: files of models do without Hydra.
    saved = load_model(file, lambda: _made(folder, trust, "model", "encoder"))
    if isinstance(saved.decoder, OwnDecoder):
        return replace(saved, decoder=_made(folder, trust, "inference"))
    return saved


def _made(folder: Path, trust: Sequence[str], *keys: str) -> Any:
    """What the configuration of a run describes at a key; None where there is no configuration."""
    if not (folder / CONFIG).is_file():
        return None
    return SavedConfiguration.read(folder, trust).make(*keys)
