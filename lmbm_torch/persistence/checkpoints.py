"""Predictors in checkpoints of Lightning, read without Lightning and without unpickling objects.

Training adds the predictor to a checkpoint under the key :data:`RECORD`, packed as in files of
:mod:`lmbm_torch.persistence.archives`. Lightning's own state holds the weights.
"""

from __future__ import annotations

import pickle
import struct
import zipfile
import zlib
from os import PathLike
from pathlib import Path
from typing import Any

import torch

from lmbm_torch.files import reading
from lmbm_torch.incoming import check_archive
from lmbm_torch.persistence.archives import DAMAGE, pack, unpack
from lmbm_torch.persistence.stored import Given

RECORD = "lmbm_torch"
# Prefixes of the names of the model's weights, in Lightning's state and in the record.
_OF_STATE, _OF_RECORD = "model.", "saved.estimator.model.weights."
# Exceptions for a damaged file, and exceptions of torch's restricted unpickler for damaged content.
_DAMAGED_FILE = (*DAMAGE, EOFError, OSError, struct.error, zipfile.BadZipFile, zlib.error)
_DAMAGED_PICKLE = (AssertionError, AttributeError, EOFError, IndexError, OverflowError, struct.error)


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
        given: arguments that a checkpoint cannot hold, from the reader.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is truncated, corrupted or no checkpoint of the library, or holds objects other
            than tensors and plain values; the model's class is not imported; or the encoder is missing or
            does not fit. The message names the file.
    """
    with reading(path, *_DAMAGED_FILE) as file:
        # Checksums are compared first, so that no damaged content is interpreted.
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
    """Refuse a checkpoint that is truncated or corrupted.

    Raises:
        ValueError: the file is truncated or no zip file, as every checkpoint is; or an entry is corrupted.
        BadZipFile: the zip file is damaged in another way.
    """
    if not zipfile.is_zipfile(file):
        raise ValueError("expected a checkpoint, got a file that is truncated or of another kind")
    with zipfile.ZipFile(file) as archive:
        check_archive(file, archive)
        if damaged := archive.testzip():
            raise ValueError(f"entry {damaged} is corrupted")


def _unpickled(file: Path) -> Any:
    try:
        return torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        # torch's own message is replaced, because it advises to load without the restriction.
        raise ValueError(
            "expected a checkpoint of only tensors and plain values, got a checkpoint with other objects; "
            "nothing of it was executed"
        ) from error
    except _DAMAGED_PICKLE as error:
        raise ValueError(
            f"expected a checkpoint, got a file with a damaged pickle: {type(error).__name__}"
        ) from error
