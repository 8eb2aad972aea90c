"""The readers of files, each with a small valid file to damage."""

from __future__ import annotations

import gzip
import io
import struct
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import certificate_checker.__main__ as certificate_checker
import numpy as np
import torch
from fuzz.stored import JSON_WORDS, STORED
from fuzz.target import NUMBERS, Target

from lmbm_torch import certificates, constraints
from lmbm_torch.data import (
    load,
    load_conll2000,
    load_ocr_letters,
    read_arff,
    read_evidence,
    read_npz,
    read_svmlight,
    read_table,
    read_uai,
)
from lmbm_torch.data.images import read_idx
from lmbm_torch.energies import PairwiseEnergy
from lmbm_torch.inference.enumeration import exact
from reproduce.multiclass_sets import load_multiclass

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


def archive(arrays: dict[str, Any]) -> bytes:
    """Return an npz file."""
    stream = io.BytesIO()
    np.savez_compressed(stream, **arrays)
    return stream.getvalue()


ARFF_WORDS = (*NUMBERS, b"@data", b"@attribute c string\n", b"{", b"}", b"'", b'"', b",", b"%", b"\\", b"\t")


def _arff(text: str, labels: Any) -> Target:
    return Target(
        "toy.arff", text.encode(), lambda folder: read_arff(folder / "toy.arff", labels), ARFF_WORDS
    )


def _by_xml(folder: Path) -> Any:
    (folder / "toy.arff").write_text(DENSE_ARFF, encoding="utf-8")
    return read_arff(folder / "toy.arff", folder / "toy.xml")


def _npz(name: str, place: str, read: Callable[[Path], Any]) -> Target:
    return Target(place, archive(ARRAYS[name]), read)


CSV = "size,town,sun,sea\n1.5,Rome,0,1\n-2,Oslo,1,NA\n,Rome,1,0\n"
CSV_WORDS = (
    *NUMBERS,
    b",",
    b"\n",
    b"\r",
    b'"',
    b"\t",
    b"true",
    b"No",
    b"NA",
    b"Rome",
    b"1_0",
    b"\xef\xbb\xbf",
)


def _table(place: str, valid: bytes, words: tuple[bytes, ...], labels: Sequence[str]) -> Target:
    return Target(place, valid, lambda folder: read_table(folder / place, labels, missing="impute"), words)


RULES = b"# a hierarchy\nsea -> sun\nat_most_one(sun, 'snow', not sea)  # or so\n2 sun + sea <= 2\n"


def _allowed(folder: Path) -> Any:
    """Read rules and make them those of three labels."""
    rules = constraints.read(folder / "toy.rules")
    try:
        return constraints.Constraints(rules, ("sun", "sea", "snow"))
    except ValueError as error:
        raise ValueError(f"toy.rules: {error}") from error


def _certificate() -> bytes:
    """Return the proof of a decoding of two labels."""
    energy = PairwiseEnergy(torch.tensor([[0.5, -1.0]]), torch.tensor([[0.0, 2.0], [2.0, 0.0]]))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "toy.lmbm"
        certificates.write(exact.decode(energy), file, energy)
        return file.read_bytes()


def _checked(folder: Path) -> None:
    if certificate_checker.main([str(folder / "toy.lmbm")]):
        raise ValueError("toy.lmbm was rejected")


_IDX = struct.pack(">HBBII", 0, 8, 2, 2, 3) + bytes(6)

TARGETS: dict[str, Target] = {
    "dense arff": _arff(DENSE_ARFF, -2),
    "sparse arff": _arff(SPARSE_ARFF, -2),
    "meka arff": _arff(DENSE_ARFF, None),
    "mulan xml": Target("toy.xml", XML.encode(), _by_xml, (b"<", b">", b"&", b'"', b"name", b"label")),
    "svmlight": Target(
        "toy.svm",
        b"1,2 1:0.5 3:1\n2 2:-1e3\n1 1:2 # note\n",
        lambda folder: read_svmlight(folder / "toy.svm"),
        (*NUMBERS, b":", b",", b" ", b"\n", b"#", b"qid:1", b"0:1", b"2147483648:1"),
    ),
    "csv table": _table("toy.csv", CSV.encode(), CSV_WORDS, ["s[ue]*"]),
    "gzipped table": _table(
        "toy.tsv.gz", gzip.compress(CSV.replace(",", "\t").encode(), mtime=0), (), ["s[ue]*"]
    ),
    "arff table": _table("toy.arff", DENSE_ARFF.encode(), ARFF_WORDS, ["a", "b"]),
    "idx": Target("toy.idx", _IDX, lambda folder: read_idx(folder / "toy.idx")),
    "gzipped idx": Target(
        "toy.idx", gzip.compress(_IDX, mtime=0), lambda folder: read_idx(folder / "toy.idx")
    ),
    "uai": Target(
        "toy.uai",
        b"MARKOV\n3\n2 2 2\n3\n1 0\n2 0 1\n2 2 1\n\n2\n.4 .6\n4\n.1 .9\n.9 .1\n4\n.2 .3\n1e-9 8\n",
        lambda folder: read_uai(folder / "toy.uai"),
        (*NUMBERS, b" ", b"BAYES", b"1_0", b"999999999", b"\xc2\xb2"),
    ),
    "uai evidence": Target(
        "toy.evid",
        b"2 0 1 2 0\n",
        lambda folder: read_evidence(folder / "toy.evid", (2, 2, 3)),
        (*NUMBERS, b" ", b"\n", b"999999999", b"\xc2\xb2"),
    ),
    "rules": Target(
        "toy.rules",
        RULES,
        _allowed,
        (
            *NUMBERS,
            b"->",
            b"<->",
            b"(",
            b")",
            b"not ",
            b" and ",
            b" or ",
            b"exactly_one(",
            b"at_least_2(",
            b"=",
        ),
    ),
    "certificate": Target("toy.lmbm", _certificate(), _checked, (*JSON_WORDS, b'"int8"', b'"shape"', b"-2")),
    "npz": _npz("npz", "toy.npz", lambda folder: read_npz(folder / "toy.npz")),
    "split npz": _npz("split npz", "toy.npz", lambda folder: read_npz(folder / "toy.npz")),
    "sparse npz": _npz("sparse npz", "scene/scene.npz", lambda folder: load("scene", folder)),
    "classes npz": _npz("classes npz", "uci/wine.npz", lambda folder: load_multiclass("wine", folder)),
    "words npz": _npz("words npz", "ocr_letters/ocr_letters.npz", load_ocr_letters),
    "chunks npz": _npz("chunks npz", "conll2000/conll2000.npz", load_conll2000),
    **STORED,
}
