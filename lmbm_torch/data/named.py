"""The data sets of the papers, by name, in a folder that the user keeps."""

from __future__ import annotations

import os
from dataclasses import replace
from os import PathLike
from pathlib import Path

import numpy as np

from lmbm_torch.data.dataset import MultilabelData
from lmbm_torch.data.formats.npz import open_archive, read_npz

NAMED_SETS = ("mediamill_subset", "rcv1_subset1", "scene", "yeast")


def load(name: str, folder: str | PathLike | None = None) -> MultilabelData:
    """Read ``<folder>/<name>/<name>.npz`` with the split it comes with.

    Labels of RCV1's test documents are moved to where the training part has them: in the joint file that is
    in circulation each stands one column early, and the first stands behind the last feature. With that,
    frequencies of labels in the two parts correlate at 0.997 instead of 0.02.

    Args:
        name: one of ``NAMED_SETS``.
        folder: by default the environment variable LMBM_DATA.

    Raises:
        FileNotFoundError: no such folder, or the set is not in it.
        ValueError: an unknown name, no folder given at all, or a file that cannot be read.
    """
    if name not in NAMED_SETS:
        raise ValueError(f"name: expected one of {list(NAMED_SETS)}, got {name!r}")
    path = data_folder(folder) / name / f"{name}.npz"
    data = read_npz(path)
    return _aligned(data, path) if name == "rcv1_subset1" else data


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


def _aligned(data: MultilabelData, path: Path) -> MultilabelData:
    """With the test part's labels one column later, where the file tells whose first label was a feature."""
    with open_archive(path) as archive:
        if "test_rows_with_removed_artefact" not in archive:
            return data
        with_first_label = archive["test_rows_with_removed_artefact"]
    labels = data.labels.copy()
    moved = np.roll(labels[data.test], 1, axis=1)
    moved[with_first_label, 0] = 1
    labels[data.test] = moved
    return replace(data, labels=labels)
