"""Files that grow beyond all measure, or announce sizes that they do not have, are refused."""

from __future__ import annotations

import bz2
import gzip
import json
import zipfile

import numpy as np
import pytest
import torch

from lmbm_torch import incoming as limits
from lmbm_torch import load, save
from lmbm_torch.data import read_npz, read_svmlight, read_table
from lmbm_torch.data.images import read_idx
from lmbm_torch.models import BoltzmannMachine, ConditionalRBM, SigmoidBeliefNetwork
from lmbm_torch.persistence import archives
from lmbm_torch.persistence.files import check_whole


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(limits, "ALWAYS_ALLOWED", 2**16)


@pytest.mark.parametrize("ending", [".gz", ".bz2"])
def test_a_compressed_text_that_grows_is_refused(ending, tmp_path):
    packed = {".gz": gzip.compress, ".bz2": bz2.compress}[ending]
    for name, read in (("rows.svm", read_svmlight), ("rows.csv", lambda path: read_table(path, "b"))):
        if (name, ending) == ("rows.csv", ".bz2"):
            continue
        line = "1 1:1\n" if name == "rows.svm" else "0,1\n"
        file = tmp_path / f"{name}{ending}"
        file.write_bytes(packed(("a,b\n" * (name == "rows.csv") + line * 100_000).encode()))
        with pytest.raises(ValueError, match=r"unpacked bytes in a file of .*, got more; if you trust"):
            read(file)
        file.write_bytes(packed(("a,b\n" * (name == "rows.csv") + line * 1000).encode()))
        assert read(file).num_instances == 1000


def test_a_compressed_array_that_grows_is_refused(tmp_path):
    header = bytes([0, 0, 8, 1]) + (10**6).to_bytes(4, "big")
    (tmp_path / "numbers.gz").write_bytes(gzip.compress(header + bytes(10**6)))
    with pytest.raises(ValueError, match="unpacked bytes in a file"):
        read_idx(tmp_path / "numbers.gz")


def test_an_archive_that_grows_is_refused_and_an_uncompressed_one_is_not(tmp_path):
    arrays = {"x": np.zeros((10, 100_000), np.float32), "y": np.zeros((10, 2))}
    np.savez_compressed(tmp_path / "small.npz", **arrays)
    with pytest.raises(
        ValueError, match=r"small\.npz: expected at most .* save the data without compression"
    ):
        read_npz(tmp_path / "small.npz")
    np.savez(tmp_path / "large.npz", **arrays)
    assert read_npz(tmp_path / "large.npz").num_features == 100_000
    with zipfile.ZipFile(tmp_path / "checkpoint.ckpt", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data/0", bytes(10**6))
    with pytest.raises(ValueError, match="unpacked bytes in a file"):
        check_whole(tmp_path / "checkpoint.ckpt")


def test_paths_in_an_archive_lead_nowhere(tmp_path):
    folder = tmp_path / "inner"
    folder.mkdir()
    np.savez(folder / "rows.npz", x=np.zeros((3, 2)), y=np.zeros((3, 2)), **{"../../evil": np.ones(3)})
    before = {*tmp_path.rglob("*")}
    assert read_npz(folder / "rows.npz").num_instances == 3
    assert {*tmp_path.rglob("*")} == before


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        (BoltzmannMachine, {"num_features": 3, "num_labels": 10**7}),
        (BoltzmannMachine, {"num_features": 10**12, "num_labels": 4}),
        (SigmoidBeliefNetwork, {"num_features": 3, "num_labels": 10**7}),
        (ConditionalRBM, {"num_features": 3, "num_labels": 4, "num_hidden": 10**12}),
    ],
)
def test_a_model_of_an_absurd_size_is_refused_before_it_is_made(kind, arguments, tmp_path):
    model = kind(**dict.fromkeys(arguments, 3))
    model.arguments = lambda: {**type(model).arguments(model), **arguments}
    save(model, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"expected shape .* by the arguments, got|model\.safetensors"):
        load(tmp_path / "model.safetensors")


def test_texts_take_no_more_room_than_they_need(tmp_path):
    archives.write(tmp_path / "file", np.array(["a", "b"]))
    content = (tmp_path / "file").read_bytes()
    assert archives.read(tmp_path / "file").dtype == np.dtype("<U1")
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    metadata = header["__metadata__"]
    metadata["record"] = metadata["record"].replace("<U1", "<U999999")
    del metadata["sha256"]
    metadata["sha256"] = archives.checksum(metadata, {})
    text = json.dumps(header).encode()
    (tmp_path / "file").write_bytes(len(text).to_bytes(8, "little") + text)
    assert archives.read(tmp_path / "file").nbytes == 8


def test_names_and_shapes_of_tensors_that_are_absurd_are_refused(tmp_path):
    from safetensors.torch import save

    content = save({"../../evil\x1b[2J": torch.zeros(2)}, {"format": "lmbm_torch", "version": "1"})
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(ValueError, match="file"):
        archives.read(tmp_path / "file")
    header = {"a": {"dtype": "F32", "shape": [2**40, 2**40], "data_offsets": [0, 8]}}
    text = json.dumps({**header, "__metadata__": {"format": "lmbm_torch", "version": "1"}}).encode()
    (tmp_path / "file").write_bytes(len(text).to_bytes(8, "little") + text + bytes(8))
    with pytest.raises(ValueError, match="or a safetensors file, got"):
        archives.read(tmp_path / "file")
