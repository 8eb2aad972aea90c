"""Readers of well-known data sets and labelled sequences by name, from a folder of the user."""

from __future__ import annotations

import os
from dataclasses import replace
from os import PathLike
from pathlib import Path

import numpy as np

from lmbm_torch.data.dataset import MultilabelData
from lmbm_torch.data.features import numbered
from lmbm_torch.data.formats.npz import open_archive, read_npz
from lmbm_torch.data.sequences.records import SequenceData
from lmbm_torch.data.sequences.windows import TAG_TEMPLATES, WORD_TEMPLATES, Windows

NAMED_SETS = ("mediamill_subset", "rcv1_subset1", "scene", "yeast")


def load(name: str, folder: str | PathLike | None = None) -> MultilabelData:
    """Read ``<folder>/<name>/<name>.npz`` with the published split.

    Labels of RCV1's test documents are moved. In the usual file of RCV1, each test label is one column too
    early, and the first label is after the last feature. After the move, the label frequencies in the two
    parts have a correlation of 0.997 instead of 0.02.

    Args:
        name: one of ``NAMED_SETS``.
        folder: folder of data sets; by default the environment variable LMBM_DATA.

    Raises:
        FileNotFoundError: the folder does not exist, or does not have the data set.
        ValueError: the name is unknown, no folder is given, or the file is unreadable.

    Examples:
        >>> from lmbm_torch.data import load
        >>> data = load("scene", "folder/of/data_sets")  # doctest: +SKIP
    """
    if name not in NAMED_SETS:
        raise ValueError(f"name: expected one of {list(NAMED_SETS)}, got {name!r}")
    path = data_folder(folder) / name / f"{name}.npz"
    data = read_npz(path)
    return _aligned(data, path) if name == "rcv1_subset1" else data


def data_folder(folder: str | PathLike | None = None) -> Path:
    """Return the given folder, or the folder in the environment variable LMBM_DATA.

    Raises:
        FileNotFoundError: the folder does not exist.
        ValueError: neither the folder nor the variable is given.
    """
    given = folder if folder is not None else os.environ.get("LMBM_DATA")
    if not given:
        raise ValueError(
            "folder: expected a folder of data sets, got None; pass folder, or set the variable LMBM_DATA"
        )
    if not Path(given).is_dir():
        raise FileNotFoundError(
            f"folder (or LMBM_DATA): expected an existing folder of data sets, got {given}"
        )
    return Path(given)


def _aligned(data: MultilabelData, path: Path) -> MultilabelData:
    """Move the test labels one column later if the file has the first label as a feature."""
    with open_archive(path) as archive:
        if "test_rows_with_removed_artefact" not in archive:
            return data
        with_first_label = archive["test_rows_with_removed_artefact"]
    labels = data.labels.copy()
    moved = np.roll(labels[data.test], 1, axis=1)
    moved[with_first_label, 0] = 1
    labels[data.test] = moved
    return replace(data, labels=labels)


def load_ocr_letters(folder: str | PathLike | None = None) -> SequenceData:
    """Read handwritten words with 16 × 8 binary pixels per letter (Taskar, Guestrin and Koller 2003).

    The data of Kassel have 6,877 words of 26 different letters in ten folds; the protocol is to train on one
    fold and to test on the other nine. Pixels are in row-major order.

    Args:
        folder: folder with ``ocr_letters/ocr_letters.npz``; by default the environment variable LMBM_DATA.

    Raises:
        FileNotFoundError: the folder does not exist, or does not have the data set.
        ValueError: no folder is given, or the file is unreadable.

    Examples:
        >>> from lmbm_torch.data import load_ocr_letters
        >>> data = load_ocr_letters("folder/of/data_sets")  # doctest: +SKIP
    """
    path = data_folder(folder) / "ocr_letters" / "ocr_letters.npz"
    with open_archive(path) as archive:
        pixels = archive["pixels"]
        return SequenceData(
            name="ocr_letters",
            features=pixels.reshape(len(pixels), -1).astype(np.float64, casting="same_kind"),
            labels=archive["label"].astype(np.int64, casting="same_kind"),
            start=archive["word_ptr"].astype(np.int64, casting="same_kind"),
            label_names=tuple("abcdefghijklmnopqrstuvwxyz"),
            feature_names=numbered("pixel", int(np.prod(pixels.shape[1:]))),
            fold=archive["word_fold"].astype(np.int64, casting="same_kind"),
        )


def load_conll2000(folder: str | PathLike | None = None) -> SequenceData:
    """Read sentences with phrases to find (text chunking, Tjong Kim Sang and Buchholz 2000).

    Fold 0 is the training part, fold 1 the test part; labels are chunk tags such as ``B-NP``. The features, a
    CSR array, are indicators of the words and part-of-speech tags around each token, for values that occur in
    the training part (:class:`~lmbm_torch.data.sequences.windows.Windows`).

    Args:
        folder: folder with ``conll2000/conll2000.npz``; by default the environment variable LMBM_DATA.

    Raises:
        FileNotFoundError: the folder does not exist, or does not have the data set.
        ValueError: no folder is given, or the file is unreadable.

    Examples:
        >>> from lmbm_torch.data import load_conll2000
        >>> data = load_conll2000("folder/of/data_sets")  # doctest: +SKIP
    """
    path = data_folder(folder) / "conll2000" / "conll2000.npz"
    with open_archive(path) as archive:
        joined = {
            name: np.concatenate([archive[f"{name}_train"], archive[f"{name}_test"]]).astype(
                np.int64, casting="same_kind"
            )
            for name in ("word", "pos", "chunk")
        }
        lengths = [np.diff(archive[f"sent_ptr_{part}"]) for part in ("train", "test")]
        start = np.concatenate([[0], *lengths]).cumsum().astype(np.int64, casting="same_kind")
        if start[-1] != len(joined["word"]) or min(map(np.min, lengths)) < 1:
            raise ValueError(f"sent_ptr: expected {len(joined['word'])} words in all, got {start[-1]}")
        fold = np.repeat([0, 1], [len(each) for each in lengths])
        values, codes = (
            (archive["words"].tolist(), archive["pos_tags"].tolist()),
            (joined["word"], joined["pos"]),
        )
        num_train = len(lengths[0])
        first, templates = slice(start[num_train]), (WORD_TEMPLATES, TAG_TEMPLATES)
        windows = Windows.of(
            ("word", "tag"), values, templates, [each[first] for each in codes], start[: num_train + 1]
        )
        return SequenceData(
            name="conll2000",
            features=windows.features(codes, start),
            labels=joined["chunk"],
            start=start,
            label_names=tuple(map(str, archive["chunk_tags"])),
            feature_names=windows.names,
            fold=fold,
        )
