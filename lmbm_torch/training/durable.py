"""Files that appear whole or not at all, whatever ends the process or fills the disk."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any, BinaryIO

import torch
from lightning.fabric.plugins import TorchCheckpointIO

from lmbm_torch.data.formats.files import reading

UNFINISHED = ".unfinished"


@contextmanager
def replacing(path: str | PathLike) -> Iterator[BinaryIO]:
    """A stream whose content takes the place of ``path`` once it is on the disk; until then that stays.

    What a killed process leaves beside it, named ``<path>.unfinished``, is overwritten by the next one.

    Raises:
        OSError: the content cannot be written, such as on a full disk; the message names the file.
    """
    file = Path(path)
    unfinished = file.with_name(file.name + UNFINISHED)
    try:
        with unfinished.open("wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        unfinished.replace(file)
    except OSError as error:
        unfinished.unlink(missing_ok=True)
        # A failed write knows no name.
        raise OSError(error.errno, f"{error.strerror}; what was there before is kept", str(file)) from error


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
            with zipfile.ZipFile(file) as archive:
                if damaged := archive.testzip():
                    raise ValueError(f"{damaged} is corrupted")
            return super().load_checkpoint(file, *args, **kwargs)
