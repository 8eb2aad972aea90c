"""One way to load whatever predicts: run directories, checkpoints, saved models and estimators."""

from __future__ import annotations

from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

from lmbm_torch.extras import naming_extras
from lmbm_torch.files import CONFIG
from lmbm_torch.models import archives
from lmbm_torch.prediction import fitted
from lmbm_torch.prediction.decoders import OwnDecoder
from lmbm_torch.prediction.fitted import FittedEstimator
from lmbm_torch.prediction.saved import MODEL, SavedModel, load_model

ESTIMATOR = "an estimator"

Predictor = SavedModel | FittedEstimator


def load(path: str | PathLike) -> Predictor:
    """The trained model, with all that predicting takes, of a run directory or of a file.

    Args:
        path: a run directory, a checkpoint, or a file of a saved model or estimator. The configuration of a
            run directory names the encoder, the class of the model or estimator and the decoder where these
            are the user's own: they are imported from where it says. A file alone never has anything
            imported.

    Raises:
        FileNotFoundError: there is none.
        ValueError: a file that cannot be read, one outside a run directory that needs an encoder, or an
            estimator of classes or of sequences.
    """
    if Path(path).is_dir():
        return _of_run(Path(path))
    holds = archives.peek(path)
    if holds == fitted.HOLDS:
        return fitted.load_fitted(path)
    if holds != ESTIMATOR:
        return load_model(path)
    # Models do not need scikit-learn.
    from lmbm_torch import estimators

    return FittedEstimator.of(estimators.load(path))


def _of_run(folder: Path) -> Predictor:
    if not (folder / CONFIG).is_file():
        return load_model(folder / MODEL)
    # Files of models do not need these two.
    with naming_extras():
        from hydra.utils import get_object, instantiate
        from omegaconf import OmegaConf

    config: Any = OmegaConf.load(folder / CONFIG)
    # The file finds a class of the user's own once its module is imported.
    if config.get("estimator") is not None:
        get_object(config.estimator._target_)
        return fitted.load_fitted(folder / MODEL)
    get_object(config.model._target_)
    saved = load_model(folder / MODEL, instantiate(config.model.get("encoder")))
    if isinstance(saved.decoder, OwnDecoder):
        return replace(saved, decoder=instantiate(config.inference))
    return saved
