"""Checkpoints that appear whole or not at all, and are read whole or not at all."""

from __future__ import annotations

import zipfile
from os import PathLike
from pathlib import Path
from typing import Any

import torch

from lmbm_torch.extras import naming_extras
from lmbm_torch.files import reading, replacing
from lmbm_torch.persistence.checkpoints import check_whole

with naming_extras():
    from lightning.fabric.plugins import TorchCheckpointIO


class WholeCheckpoints(TorchCheckpointIO):
    """Lightning's checkpoints, written by :func:`replacing` and checked before they are read.

    Lightning writes to the system's temporary folder and moves the file: on another file system that is a
    copy, which a kill cuts off.
    """

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | PathLike, storage_options: Any = None
    ) -> None:
        """Write a checkpoint.

        Raises:
            OSError: as :func:`replacing`.
            TypeError: storage options, of which there are none.
        """
        if storage_options is not None:
            raise TypeError(f"storage_options: expected None, got {storage_options!r}")
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as stream:
            torch.save(checkpoint, stream)

    def load_checkpoint(self, path: str | PathLike, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Read a checkpoint.

        Raises:
            FileNotFoundError: there is no such file.
            ValueError: the file is truncated or corrupted; the message names it.
        """
        with reading(path, zipfile.BadZipFile, argument="checkpoint") as file:
            check_whole(file)
            return super().load_checkpoint(file, *args, **kwargs)
