"""The data sets of the papers, by name, in a folder that the user keeps."""

from __future__ import annotations

import os
from os import PathLike
from pathlib import Path

from lmbm_torch.data.dataset import MultilabelData
from lmbm_torch.data.formats.npz import read_npz

NAMED_SETS = ("mediamill_subset", "rcv1_subset1", "scene", "yeast")


def load(name: str, folder: str | PathLike | None = None) -> MultilabelData:
    """Read ``<folder>/<name>/<name>.npz`` with the split it comes with.

    Args:
        name: one of ``NAMED_SETS``.
        folder: by default the environment variable LMBM_DATA.

    Raises:
        FileNotFoundError: no such folder, or the set is not in it.
        ValueError: an unknown name, no folder given at all, or a file that cannot be read.
    """
    if name not in NAMED_SETS:
        raise ValueError(f"name: expected one of {list(NAMED_SETS)}, got {name!r}")
    return read_npz(data_folder(folder) / name / f"{name}.npz")


def data_folder(folder: str | PathLike | None = None) -> Path:
    """The folder given, or the one that the environment variable LMBM_DATA names.

    Raises:
        FileNotFoundError: it is not a folder.
        ValueError: neither is given.
    """
    given = folder if folder is not None else os.environ.get("LMBM_DATA")
    if not given:
        raise ValueError(
            "folder: expected the folder of data sets, here or in the environment variable LMBM_DATA"
        )
    if not Path(given).is_dir():
        raise FileNotFoundError(
            f"folder (or LMBM_DATA): expected a folder of data sets, found none at {given}"
        )
    return Path(given)
