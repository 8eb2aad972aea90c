"""The readers of what the library itself has written, as targets: models, estimators, data on the disk.

A checksum would let no damage through, so that the damaged part of a file is put in place and signed again.
"""

from __future__ import annotations

import io
import tempfile
import zipfile
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fuzz.target import NUMBERS, Target
from safetensors import safe_open
from safetensors.torch import save as in_one_file
from scipy.sparse import csr_array

from lmbm_torch import estimators, load, models, save
from lmbm_torch.data import open_mapped, write_mapped
from lmbm_torch.persistence import archives
from lmbm_torch.persistence.files import RECORD, record
from lmbm_torch.prediction.predictor import Predictor

NAMES = ("sun", "sea")
FILE, FOLDER = "toy.safetensors", "toy"
FEATURES = np.array([[0.0, 1.5], [-2.0, 0.0], [1.0, 1.0]], np.float32)
LABELS = np.array([[0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
JSON_WORDS = (*NUMBERS, b"null", b"true", b"NaN", b"-Infinity", b'""', b"[", b"]", b"{", b"}", b":", b",")
RECORD_WORDS = tuple(
    f'"{word}"'.encode()
    for word in (":kind", ":dict", ":tuple", ":tensor", ":array", ":texts", ":number", "parts", "dtype")
)
NPY_WORDS = (*NUMBERS, b"<f8", b"|O", b"|S0", b"'fortran_order': True", b"(9999999, 9999999)", b"(", b",)")
PICKLE_WORDS = (b"c__builtin__\neval\n", b"ctorch\nzeros\n", b"R", b"u", b"e", b"0", b"h\x99", b"\x8a\x04")


def _network() -> models.SigmoidBeliefNetwork:
    network = models.SigmoidBeliefNetwork(2, 2, [1, 0])
    with torch.no_grad():
        for weight in network.parameters():
            weight.fill_(0.5)
    return network.eval()


def _save_estimator(path: Path) -> None:
    # One that needs no kernel, which could not be compiled of what is instrumented.
    machine = estimators.ConditionalRBMClassifier(num_hidden=2, objective="mle_mf", max_iter=1)
    save(machine.fit(FEATURES, LABELS), path)


SAVED: dict[str, tuple[Callable[[Path], Any], Callable[[Path], Any]]] = {
    "model": (lambda path: save(_network(), path), load),
    "trained model": (lambda path: save(Predictor.of_model(_network(), NAMES, 1.0, None), path), load),
    "estimator": (_save_estimator, load),
}


@cache
def saved(kind: str) -> tuple[bytes, dict[str, str], dict[str, torch.Tensor]]:
    """Return a valid file: its content, what it says of itself, and its tensors."""
    write, _ = SAVED[kind]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / FILE
        write(file)
        with safe_open(file, framework="pt") as stored:
            tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118  # no dictionary
            return file.read_bytes(), stored.metadata(), tensors


def _load_with_record(kind: str, folder: Path) -> Any:
    """Read a file of this record, which is otherwise as it should be."""
    _, metadata, tensors = saved(kind)
    said = {name: metadata[name] for name in ("format", "version")}
    said["record"] = (folder / "toy.json").read_bytes().decode(errors="replace")
    said["sha256"] = archives.checksum(said, tensors)
    (folder / FILE).write_bytes(in_one_file(tensors, said))
    _, load = SAVED[kind]
    return load(folder / FILE)


def _of_record(kind: str) -> Target:
    valid = saved(kind)[1]["record"].encode()
    return Target("toy.json", valid, partial(_load_with_record, kind), (*JSON_WORDS, *RECORD_WORDS))


@cache
def checkpoint() -> bytes:
    """Return the entries of a checkpoint that prediction reads."""
    network, stream = _network(), io.BytesIO()
    weights = {f"model.{name}": weight for name, weight in network.state_dict().items()}
    torch.save({RECORD: record(Predictor.of_model(network, NAMES)), "state_dict": weights}, stream)
    return stream.getvalue()


def _pickled() -> bytes:
    with zipfile.ZipFile(io.BytesIO(checkpoint())) as archive:
        return archive.read("archive/data.pkl")


def _load_with_pickle(folder: Path) -> Any:
    """Read a checkpoint of this pickle, whose tensors are as they should be."""
    with (
        zipfile.ZipFile(io.BytesIO(checkpoint())) as archive,
        zipfile.ZipFile(folder / "toy.ckpt", "w") as other,
    ):
        for entry in archive.infolist():
            own = entry.filename.endswith("data.pkl")
            other.writestr(entry.filename, (folder / "toy.pkl").read_bytes() if own else archive.read(entry))
    return load(folder / "toy.ckpt")


@cache
def stored(*, sparse: bool) -> dict[str, bytes]:
    """Return the files of a data set on the disk."""
    features = csr_array(FEATURES) if sparse else FEATURES
    with tempfile.TemporaryDirectory() as folder:
        write_mapped(Path(folder) / FOLDER, [(features, LABELS)], label_names=NAMES)
        return {file.name: file.read_bytes() for file in (Path(folder) / FOLDER).iterdir()}


def _read_stored(name: str, sparse: bool, folder: Path) -> Any:
    """Read all rows of a data set of which one file is given and the others are as they should be."""
    for other, content in stored(sparse=sparse).items():
        if other != name:
            (folder / FOLDER / other).write_bytes(content)
    data = open_mapped(folder / FOLDER)
    return data.features[:], data.labels[:], data.features[[2, 0]]


def _of_stored(name: str, *, sparse: bool) -> Target:
    words = JSON_WORDS if name.endswith("json") else NPY_WORDS
    valid = stored(sparse=sparse)[name]
    return Target(f"{FOLDER}/{name}", valid, partial(_read_stored, name, sparse), words)


RECORDS: dict[str, Target] = {f"{kind} record": _of_record(kind) for kind in SAVED}
DESCRIPTIONS: dict[str, Target] = {
    "dense description": _of_stored("data.json", sparse=False),
    "sparse description": _of_stored("data.json", sparse=True),
}
STORED: dict[str, Target] = {
    "model": Target(FILE, saved("model")[0], lambda folder: load(folder / FILE), JSON_WORDS),
    "checkpoint": Target("toy.ckpt", checkpoint(), lambda folder: load(folder / "toy.ckpt")),
    "checkpoint pickle": Target("toy.pkl", _pickled(), _load_with_pickle, PICKLE_WORDS),
    **RECORDS,
    **DESCRIPTIONS,
    "stored labels": _of_stored("labels.npy", sparse=False),
    "stored features": _of_stored("features.npy", sparse=False),
    **{f"stored {part}": _of_stored(f"{part}.npy", sparse=True) for part in ("data", "indices", "indptr")},
}
