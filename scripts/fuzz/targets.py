"""The readers of files, each with a small valid file to damage and the rule that holds for all of them."""

from __future__ import annotations

import gzip
import io
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lmbm_torch.data import (
    by_meka_option,
    by_mulan_xml,
    last,
    load,
    load_conll2000,
    load_multiclass,
    load_ocr_letters,
    read_arff,
    read_faq,
    read_npz,
    read_svmlight,
)
from lmbm_torch.data.formats.idx import read_idx

DENSE_ARFF = """@relation 'toy: -C -2'
@attribute size numeric
@attribute 'is big' {false,true}
@attribute a {0,1}
@attribute b {0,1}
@data
1.5,true,0,1
-2,false,1,?
"""
SPARSE_ARFF = DENSE_ARFF.replace("1.5,true,0,1\n-2,false,1,?", "{0 1.5, 1 true, 3 1}\n{0 -2, 2 1}")
XML = '<?xml version="1.0"?><labels><label name="a"/><label name="b"/></labels>'
ARRAYS: dict[str, dict[str, Any]] = {
    "npz": {"x": np.eye(3, 2), "y": np.eye(3, 2), "label_names": ["a", "b"]},
    "split npz": {
        "x_train": np.eye(3, 2),
        "y_train": np.eye(3, 2),
        "x_test": np.ones((2, 2), np.uint8),
        "y_test": np.zeros((2, 2)),
    },
    "sparse npz": {
        "x_data": np.array([0.5, 2.0]),
        "x_indices": np.array([1, 0]),
        "x_indptr": np.array([0, 1, 2]),
        "x_shape": np.array([2, 3]),
        "y": np.eye(2),
    },
    "classes npz": {"x": np.eye(3), "y": np.array([1, 2, 1]), "class_names": ["one", "two"]},
    "words npz": {
        "pixels": np.zeros((3, 16, 8), np.uint8),
        "label": np.array([0, 3, 25], np.uint8),
        "word_ptr": np.array([0, 2, 3]),
        "word_fold": np.array([0, 1]),
    },
    "chunks npz": {
        "words": ["a", "b"],
        "pos_tags": ["DT", "NN"],
        "chunk_tags": ["B-NP", "O"],
        **{f"{name}_train": np.array([0, 1, 1]) for name in ("word", "pos", "chunk")},
        **{f"{name}_test": np.array([1, 0]) for name in ("word", "pos", "chunk")},
        "sent_ptr_train": np.array([0, 3]),
        "sent_ptr_test": np.array([0, 2]),
    },
}


@dataclass(frozen=True)
class Target:
    """A reader.

    Args:
        place: where its file lies in a folder.
        valid: what a small file of its format holds.
        read: the folder → the record.
        words: what means something in the format.
    """

    place: str
    valid: bytes
    read: Callable[[Path], Any]
    words: tuple[bytes, ...] = ()


def archive(arrays: dict[str, Any]) -> bytes:
    """An npz file."""
    stream = io.BytesIO()
    np.savez_compressed(stream, **arrays)
    return stream.getvalue()


def refused(target: Target, folder: Path, content: bytes) -> bool:
    """Whether the reader refuses a file of this content.

    Raises:
        AssertionError: it refuses without naming the file.
        Exception: whatever else comes up than a ValueError: what fuzzing looks for.
    """
    file = folder / target.place
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
    try:
        target.read(folder)
    except ValueError as error:
        # The labels that an XML file names may be missing from the ARFF file beside it.
        if file.stem not in str(error):
            raise AssertionError(f"{file.name} is not named: {error}") from error
        return True
    return False


NUMBERS = (b"nan", b"-inf", b"1e999", b"-1", b"99999999999999999999", b"?", b"\x00", b"\xff")
ARFF_WORDS = (*NUMBERS, b"@data", b"@attribute c string\n", b"{", b"}", b"'", b'"', b",", b"%", b"\\", b"\t")


def _arff(text: str, labels: Any) -> Target:
    return Target(
        "toy.arff", text.encode(), lambda folder: read_arff(folder / "toy.arff", labels), ARFF_WORDS
    )


def _by_xml(folder: Path) -> Any:
    (folder / "toy.arff").write_text(DENSE_ARFF, encoding="utf-8")
    return read_arff(folder / "toy.arff", by_mulan_xml(folder / "toy.xml"))


def _npz(name: str, place: str, read: Callable[[Path], Any]) -> Target:
    return Target(place, archive(ARRAYS[name]), read)


_IDX = struct.pack(">HBBII", 0, 8, 2, 2, 3) + bytes(6)

TARGETS: dict[str, Target] = {
    "dense arff": _arff(DENSE_ARFF, last(2)),
    "sparse arff": _arff(SPARSE_ARFF, last(2)),
    "meka arff": _arff(DENSE_ARFF, by_meka_option),
    "mulan xml": Target("toy.xml", XML.encode(), _by_xml, (b"<", b">", b"&", b'"', b"name", b"label")),
    "svmlight": Target(
        "toy.svm",
        b"1,2 1:0.5 3:1\n2 2:-1e3\n1 1:2 # note\n",
        lambda folder: read_svmlight(folder / "toy.svm"),
        (*NUMBERS, b":", b",", b" ", b"\n", b"#", b"qid:1", b"0:1", b"2147483648:1"),
    ),
    "idx": Target("toy.idx", _IDX, lambda folder: read_idx(folder / "toy.idx")),
    "gzipped idx": Target("toy.idx", gzip.compress(_IDX), lambda folder: read_idx(folder / "toy.idx")),
    "faq": Target(
        "toy.txt",
        b"<head>A list\n<question>1) Who?\n<answer>  me\n<tail>\n",
        lambda folder: read_faq([folder / "toy.txt"]),
        (b"<answer>", b"<", b"\r", b"\x0c", b"\xff", b" " * 50),
    ),
    "npz": _npz("npz", "toy.npz", lambda folder: read_npz(folder / "toy.npz")),
    "split npz": _npz("split npz", "toy.npz", lambda folder: read_npz(folder / "toy.npz")),
    "sparse npz": _npz("sparse npz", "scene/scene.npz", lambda folder: load("scene", folder)),
    "classes npz": _npz("classes npz", "uci/wine.npz", lambda folder: load_multiclass("wine", folder)),
    "words npz": _npz("words npz", "ocr_letters/ocr_letters.npz", load_ocr_letters),
    "chunks npz": _npz("chunks npz", "conll2000/conll2000.npz", load_conll2000),
}
