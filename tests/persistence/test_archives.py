"""Files come back as they went out, and none that is damaged, foreign or newer comes back at all."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from problems.full_disk import fill
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

from lmbm_torch.persistence import archives, stored
from lmbm_torch.persistence.archives import DEEPEST, VERSION
from lmbm_torch.persistence.stored import adapt

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)
ARRAYS = (
    np.arange(6).reshape(2, 3),
    np.array([], np.float32),
    np.array([[True, False]]),
    np.array(["a", "Å"]),
    np.array(["a", "bc"], object),
    np.float32(0.1),
    np.int64(7),
    np.arange(4.0).astype(">f8"),
    np.asfortranarray(np.arange(6.0).reshape(2, 3)),
)


def same(first, second) -> bool:
    if type(first) is not type(second):
        return False
    if isinstance(first, dict):
        return list(first) == list(second) and all(same(first[key], second[key]) for key in first)
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(map(same, first, second))
    return first == second or (isinstance(first, float) and math.isnan(first) and math.isnan(second))


@given(PLAIN)
def test_plain_values_come_back(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("plain") / "file"
    archives.write(path, content)
    assert same(archives.read(path), content)


@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: str(array.dtype))
def test_arrays_come_back(tmp_path, array):
    archives.write(tmp_path / "file", {"array": array})
    found = archives.read(tmp_path / "file")["array"]
    assert type(found) is type(array)
    assert found.dtype == array.dtype
    assert np.array_equal(found, array)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool])
def test_tensors_come_back(tmp_path, dtype):
    whole = torch.arange(12).reshape(3, 4).to(dtype)
    content = [whole, whole.mT, whole[1:, 1], whole[0, 0]]
    archives.write(tmp_path / "file", content)
    for found, tensor in zip(archives.read(tmp_path / "file"), content, strict=True):
        assert found.dtype == dtype
        assert torch.equal(found, tensor)


def test_adapted_objects_come_back(tmp_path, monkeypatch):
    monkeypatch.setattr(stored, "_ADAPTED", {})
    adapt(complex, lambda value: {"parts": (value.real, value.imag)}, lambda given, parts: complex(*parts))
    archives.write(tmp_path / "file", {"z": 1 + 2j})
    assert archives.read(tmp_path / "file") == {"z": 1 + 2j}
    monkeypatch.setattr(stored, "_ADAPTED", {})
    with pytest.raises(ValueError, match="expected a class of lmbm_torch or an imported class, got complex"):
        archives.read(tmp_path / "file")


@pytest.mark.parametrize("value", [object(), {1: 2}, {1}, print, np.array([None]), torch.eye(2).to_sparse()])
def test_what_a_file_cannot_hold_is_named_and_leaves_nothing(tmp_path, value):
    with pytest.raises(TypeError, match=r"content\.deep\.1: expected"):
        archives.write(tmp_path / "file", {"deep": [0, value]})
    assert list(tmp_path.iterdir()) == []


def test_the_same_content_makes_the_same_bytes(tmp_path):
    content = {"b": torch.arange(3.0), "a": torch.eye(2, dtype=torch.float64), "name": "x"}
    for number in range(8):
        archives.write(tmp_path / str(number), content)
    assert len({file.read_bytes() for file in tmp_path.iterdir()}) == 1
    assert torch.equal(load_tensors((tmp_path / "0").read_bytes())["content.b"], content["b"])


def test_a_file_that_is_replaced_while_it_is_read_is_read_whole(tmp_path, monkeypatch):
    path = tmp_path / "file"
    archives.write(path, torch.zeros(1000))
    check = archives._check_version

    def replace_and_check(version):
        archives.write(path, torch.ones(10), mode="w")
        check(version)

    with monkeypatch.context() as patched:
        patched.setattr(archives, "_check_version", replace_and_check)
        assert torch.equal(archives.read(path), torch.zeros(1000))
    assert torch.equal(archives.read(path), torch.ones(10))


def test_a_file_is_never_overwritten_unless_asked(tmp_path):
    path = tmp_path / "file"
    archives.write(path, 1)
    with pytest.raises(FileExistsError):
        archives.write(path, 2)
    assert archives.read(path) == 1
    archives.write(path, 2, mode="w")
    assert archives.read(path) == 2


def test_a_full_disk_leaves_the_old_file_and_is_named(tmp_path, monkeypatch):
    path = tmp_path / "file"
    archives.write(path, 1)
    fill(monkeypatch, path)
    with pytest.raises(
        OSError, match=r"No space left on device; an older file of this name is kept: '.*file'"
    ):
        archives.write(path, 2, mode="w")
    assert archives.read(path) == 1
    assert list(tmp_path.iterdir()) == [path]


@pytest.fixture
def content(tmp_path):
    archives.write(tmp_path / "good", {"weights": torch.arange(3.0), "name": "x"})
    return (tmp_path / "good").read_bytes()


def test_no_truncation_and_no_flipped_bit_gets_through(tmp_path, content):
    damaged = [content[:length] for length in range(len(content))]
    for place in range(len(content)):
        flipped = bytearray(content)
        flipped[place] ^= 1 << (place % 8)
        damaged.append(bytes(flipped))
    for each in damaged:
        (tmp_path / "bad").write_bytes(each)
        with pytest.raises(ValueError, match=r"path: .*bad: "):
            archives.read(tmp_path / "bad")


def signed(**changes):
    metadata = {"format": "lmbm_torch", "version": str(VERSION), "record": "1", **changes}
    return save_tensors({}, {**metadata, "sha256": archives.checksum(metadata, {})})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            save_tensors({"w": torch.zeros(2)}),
            "expected a file that lmbm_torch wrote, got another safetensors file",
        ),
        (signed(format="other"), "expected a file that lmbm_torch wrote"),
        (signed(version=str(VERSION + 1)), f"got version {VERSION + 1}; read the file with"),
        (signed(version="0"), f"expected version {VERSION} of the format, got version 0"),
        (signed(version="one"), "invalid literal"),
        (signed(record="{"), "Expecting"),
        (signed(record="[" * 10**5), "recursion"),
        (signed(record="[" * (DEEPEST + 2) + "]" * (DEEPEST + 2)), f"at most {DEEPEST} levels"),
        (signed(record=json.dumps({":kind": "os.system", "parts": "rm"})), "got os.system"),
        (signed(record=json.dumps({":tensor": "none"})), "none"),
        (signed(record=json.dumps({":texts": ["a"], "dtype": "<,8"})), "dtype: expected a type of numbers"),
        (signed(record=json.dumps({":texts": ["a"], "dtype": "(9999,9999)U9"})), "dtype: expected a type"),
        (b"PK\x03\x04 something else", "truncated, corrupted or of another kind"),
        (b"", "truncated, corrupted or of another kind"),
    ],
)
def test_foreign_and_newer_files_are_refused(tmp_path, content, message):
    (tmp_path / "bad").write_bytes(content)
    with pytest.raises(ValueError, match=rf"path: .*bad: .*{message}"):
        archives.read(tmp_path / "bad")


def test_missing_files_and_folders_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="none"):
        archives.read(tmp_path / "none")
    with pytest.raises(FileNotFoundError, match="path: expected a file, found a folder at"):
        archives.read(tmp_path)


@pytest.mark.parametrize(("stated", "number"), [("<U999999", 1), ("|O", 1)])
def test_numbers_are_not_made_texts_by_a_dtype(tmp_path, stated, number):
    tensors = {"content": torch.ones(number, dtype=torch.int8)}
    record = json.dumps({":array": "content", "dtype": stated, "is_number": False})
    metadata = {"format": "lmbm_torch", "version": str(VERSION), "record": record}
    content = save_tensors(tensors, {**metadata, "sha256": archives.checksum(metadata, tensors)})
    (tmp_path / "bad").write_bytes(content)
    with pytest.raises(ValueError, match="dtype: expected a type of numbers"):
        archives.read(tmp_path / "bad")


def test_another_programs_tensors_are_not_read(tmp_path, monkeypatch):
    (tmp_path / "other").write_bytes(save_tensors({"w": torch.zeros(2)}))
    monkeypatch.setattr(archives, "_tensors", lambda file: pytest.fail("they were read"))
    with pytest.raises(ValueError, match="got another safetensors file"):
        archives.read(tmp_path / "other")
