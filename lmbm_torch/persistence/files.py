"""Writer and reader of models, estimators, predictors, checkpoints and run directories.

Checkpoints of Lightning are read without Lightning and without unpickling objects: training adds the
predictor, without weights, under the key :data:`RECORD`, packed as in files of
:mod:`lmbm_torch.persistence.archives`; the weights are read from Lightning's own state.
"""

from __future__ import annotations

import pickle
import struct
import zipfile
import zlib
from collections.abc import Sequence
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

import torch

from lmbm_torch.files import CONFIG, MODEL, Mode, reading
from lmbm_torch.incoming import check_archive
from lmbm_torch.persistence import archives
from lmbm_torch.persistence.archives import DAMAGE, pack, unpack
from lmbm_torch.persistence.stored import Given, Stored, kind_of
from lmbm_torch.persistence.trusted import SavedConfiguration, import_trusted

RECORD = "lmbm_torch"
# Prefixes of the names of the model's weights in Lightning's state and in this library's record.
_OF_STATE, _OF_RECORD = "model.", "saved.estimator.model.weights."
# Exceptions that reading a damaged file may raise, and exceptions of torch's unpickler for damaged content.
_DAMAGED_FILE = (*DAMAGE, EOFError, OSError, struct.error, zipfile.BadZipFile, zlib.error)
_DAMAGED_PICKLE = (AssertionError, AttributeError, EOFError, IndexError, OverflowError, struct.error)


# The first bytes of every zip file; checkpoints are zip files.
_ZIP = b"PK"


def record(saved: Any) -> dict[str, Any]:
    """Return the record of a predictor for a checkpoint, without the model's weights.

    Raises:
        TypeError: a file cannot hold an argument of the model; the message names the argument.
    """
    state = pack(saved, "saved")
    others = {name: tensor for name, tensor in state["tensors"].items() if not name.startswith(_OF_RECORD)}
    return {**state, "tensors": others}


def read_checkpoint(path: str | PathLike, given: Given | None = None) -> Any:
    """Return the predictor of a checkpoint, on the CPU.

    Args:
        path: the checkpoint.
        given: arguments that a checkpoint cannot hold, such as an encoder.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is truncated, corrupted or no checkpoint of the library, or holds objects other
            than tensors and plain values; the model's class is not imported; or the encoder is missing or
            does not fit. The message names the file.
    """
    with reading(path, *_DAMAGED_FILE) as file:
        # Compare checksums first, so that no damaged content is interpreted.
        check_whole(file)
        checkpoint = _unpickled(file)
        if not isinstance(checkpoint, dict) or RECORD not in checkpoint:
            raise ValueError("expected a checkpoint of lmbm_torch, got another file")
        state = checkpoint[RECORD]
        weights = {
            _OF_RECORD + name.removeprefix(_OF_STATE): value
            for name, value in checkpoint["state_dict"].items()
            if name.startswith(_OF_STATE)
        }
        return unpack({**state, "tensors": {**state["tensors"], **weights}}, given)


def check_whole(file: Path) -> None:
    """Raise an error if a checkpoint is truncated or corrupted.

    Raises:
        ValueError: the file is truncated, is no zip file (checkpoints are zip files), or has a bad entry.
        BadZipFile: the zip file is damaged in another way.
    """
    if not zipfile.is_zipfile(file):
        raise ValueError("expected a checkpoint, got a file that is truncated or of another kind")
    with zipfile.ZipFile(file) as archive:
        check_archive(file, archive)
        if damaged := archive.testzip():
            raise ValueError(f"expected an intact checkpoint, got the corrupted entry {damaged}")


def _unpickled(file: Path) -> Any:
    try:
        return torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        # Replace torch's own message, which advises to load without the restriction.
        raise ValueError(
            "expected a checkpoint of only tensors and plain values, got a checkpoint with other objects; "
            "nothing of it was executed"
        ) from error
    except _DAMAGED_PICKLE as error:
        raise ValueError(
            f"expected a checkpoint, got a file with a damaged pickle: {type(error).__name__}"
        ) from error


def save(content: Any, path: str | PathLike, mode: Mode = "x") -> None:
    """Write a model, a fitted estimator or a predictor to one file, such as ``model.safetensors``.

    The file holds arrays as safetensors and everything else as JSON, without pickle. For an encoder, the file
    holds only the weights. For a decoder outside of the library, the file holds only the import path.

    Args:
        content: a model of :mod:`lmbm_torch.models`, a fitted estimator of :mod:`lmbm_torch.estimators`, a
            :class:`~lmbm_torch.data.TableEncoder`, a pipeline with scalers of scikit-learn, or a
            predictor of :mod:`lmbm_torch.prediction`.
        mode: as in ``open``: by default an existing file is never overwritten.

    Raises:
        FileExistsError: the file exists, in mode ``"x"``.
        NotFittedError: the estimator is not fitted.
        OSError: the file cannot be written.
        TypeError: ``content`` is of another library, or has a parameter or a fitted attribute that is not a
            plain value, such as a kernel or a random state that is a Python object.

    Examples:
        >>> import tempfile
        >>> from lmbm_torch import load, save
        >>> from lmbm_torch.models import BoltzmannMachine
        >>> file = tempfile.mkdtemp() + "/model.safetensors"
        >>> save(BoltzmannMachine(num_features=3, num_labels=2), file)
        >>> load(file).num_labels
        2
    """
    if kind_of(content) is None:
        raise TypeError(
            "content: expected a model, an estimator or a predictor of lmbm_torch, got "
            f"{type(content).__name__} of {type(content).__module__}; files cannot hold objects of other "
            "libraries"
        )
    if isinstance(content, Stored):
        content.check_stored()
    archives.write(path, content, mode)


def load(path: str | PathLike, *, encoder: Any = None, device: str = "cpu", trust: Sequence[str] = ()) -> Any:
    """Return the model, estimator or predictor of a file, a checkpoint or a run directory.

    Files name classes and functions; only names in the library, listed classes of torch and names in
    ``trust`` are imported or called, see :mod:`lmbm_torch.persistence.trusted`. The configuration of a run is
    used only for an encoder or a decoder that the model's file does not hold.

    Args:
        path: a file of :func:`save`, a checkpoint of a training, or a run directory.
        encoder: if the model was saved with an encoder, a module with the same architecture, which gets the
            weights of the file, or a function that returns this module; otherwise None.
        device: the parameter ``device`` of an estimator; models are on the CPU.
        trust: import paths of your own classes and functions that the file may use as model, encoder or
            decoder, such as ``"mine.Encoder"``; these paths are imported.

    Returns:
        The object that :func:`save` wrote, in evaluation mode; for a checkpoint or a run, the predictor.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is truncated, corrupted, or of another kind or version; a class is not imported,
            or a name is not trusted; or the encoder is missing or does not fit. The message names the file.

    Examples:
        >>> import tempfile
        >>> from lmbm_torch import LMSBNClassifier, load
        >>> file = tempfile.mkdtemp() + "/model.safetensors"
        >>> LMSBNClassifier().fit([[0.0], [1.0]], [[0, 1], [1, 0]]).save(file)
        >>> load(file).predict([[1.0]])
        array([[1, 0]])
    """
    import_trusted(trust)
    folder, file, decoder = Path(path), Path(path), None
    if folder.is_dir():
        file = folder / MODEL
        encoder = encoder or partial(_made, folder, trust, "model", "encoder")
        decoder = partial(_made, folder, trust, "inference")
    given = Given(encoder, decoder, device)
    return read_checkpoint(file, given) if _is_zip(file) else archives.read(file, given)


def _is_zip(file: Path) -> bool:
    if not file.is_file():
        return False
    with file.open("rb") as stream:
        return stream.read(len(_ZIP)) == _ZIP


def _made(folder: Path, trust: Sequence[str], *keys: str) -> Any:
    """Make the object described at a path of keys in a run's configuration; None without configuration."""
    if not (folder / CONFIG).is_file():
        return None
    return SavedConfiguration.read(folder, trust).make(*keys)
