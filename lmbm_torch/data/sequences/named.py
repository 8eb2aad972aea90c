"""Labelled sequences of the literature, by name, in a folder that the user keeps."""

from __future__ import annotations

from os import PathLike

import numpy as np

from lmbm_torch.data.features import numbered
from lmbm_torch.data.formats.npz import open_archive
from lmbm_torch.data.named import data_folder
from lmbm_torch.data.sequences.records import SequenceData
from lmbm_torch.data.sequences.windows import window_features


def load_ocr_letters(folder: str | PathLike | None = None) -> SequenceData:
    """Handwritten words (Kassel; Taskar, Guestrin and Koller 2003): 16 × 8 binary pixels a letter, float64.

    There are 6,877 words of 26 letters in ten folds; the protocol is to train on one and to test on the
    other nine. Pixels are in row-major order.

    Args:
        folder: has ``ocr_letters/ocr_letters.npz``; by default the environment variable LMBM_DATA.

    Raises:
        FileNotFoundError: no such folder, or the set is not in it.
        ValueError: no folder given at all, or a file that cannot be read.
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
    """Text chunking (Tjong Kim Sang and Buchholz 2000) with windows of words and tags as features, CSR.

    Fold 0 is the training part, fold 1 the test part; labels are chunk tags such as ``B-NP``. The features
    are indicators of the words and part-of-speech tags around each token
    (:func:`~lmbm_torch.data.sequences.windows.window_features`); only those that occur in the training part
    are features.

    Args:
        folder: has ``conll2000/conll2000.npz``; by default the environment variable LMBM_DATA.

    Raises:
        FileNotFoundError: no such folder, or the set is not in it.
        ValueError: no folder given at all, or a file that cannot be read.
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
            raise ValueError(f"sent_ptr: expected sentences of {len(joined['word'])} words, got {start[-1]}")
        fold = np.repeat([0, 1], [len(each) for each in lengths])
        features, names = window_features(
            joined["word"], joined["pos"], start, archive["words"], archive["pos_tags"], len(lengths[0])
        )
        return SequenceData(
            name="conll2000",
            features=features,
            labels=joined["chunk"],
            start=start,
            label_names=tuple(map(str, archive["chunk_tags"])),
            feature_names=names,
            fold=fold,
        )
