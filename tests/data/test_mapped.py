"""Data on the disk are served like those in memory, a batch at a time, and damage is found."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array, random_array

from lmbm_torch.data import open_mapped, write_mapped
from lmbm_torch.data.datamodule import MappedDataModule, MultilabelDataModule
from lmbm_torch.data.dataset import MultilabelData
from lmbm_torch.data.features import numbered
from lmbm_torch.data.scaling import standardise, unit_norm, unscaled

NAMES = ("sun", "sea")


def arrays(*, sparse: bool) -> tuple:
    generator = np.random.default_rng(0)
    features = random_array((50, 6), density=0.3, rng=generator, format="csr").astype(np.float32)
    labels = (generator.random((50, 2)) < 0.5).astype(np.float64)
    labels[3, 1] = np.nan
    return csr_array(features) if sparse else features.toarray(), labels


def parts(features, labels, first, last, size):
    """Slices, the last one shorter."""
    for start in range(first, last, size):
        rows = slice(start, min(start + size, last))
        yield features[rows], labels[rows]


@pytest.fixture(params=[False, True], ids=["dense", "sparse"])
def stored(request, tmp_path):
    features, labels = arrays(sparse=request.param)
    folder = tmp_path / "data"
    train, test = parts(features, labels, 0, 40, 7), parts(features, labels, 40, 50, 7)
    write_mapped(folder, train, test, label_names=NAMES)
    return folder, features, labels


def as_array(features):
    return features.toarray() if isinstance(features, csr_array) else features


@pytest.mark.parametrize("rows", [slice(3, 9), [4, 1, 1, 49], np.array([0]), slice(None)])
def test_rows_are_read_as_they_were_written(stored, rows):
    folder, features, labels = stored
    data = open_mapped(folder)
    np.testing.assert_array_equal(as_array(data.features[rows]), as_array(features[rows]))
    np.testing.assert_array_equal(data.labels[rows], labels[rows].astype(np.float32))
    assert isinstance(data.features[rows], type(features))
    assert (len(data.train), len(data.test), data.num_features) == (40, 10, 6)
    assert data.label_names == NAMES
    assert repr(data) == "<data: 40 instances to train and 10 to test, 6 features, 2 labels>"


@pytest.mark.parametrize("scaling", [standardise, unit_norm, unscaled])
def test_batches_are_those_of_the_same_data_in_memory(stored, scaling):
    folder, features, labels = stored
    if scaling is standardise and isinstance(features, csr_array):
        scaling = unit_norm
    names = numbered("feature", 6)
    in_memory = MultilabelData("data", features, labels, NAMES, names, np.arange(40), np.arange(40, 50))
    options = {"scaling": scaling, "batch_size": 9, "validation_fraction": 0.2, "seed": 1}
    mapped = MappedDataModule(open_mapped(folder), **options)
    other = MultilabelDataModule(in_memory, **options)
    assert mapped.scaling.agrees(other.scaling)
    for loader in ("train_dataloader", "val_dataloader", "test_dataloader"):
        for ours, theirs in zip(getattr(mapped, loader)(), getattr(other, loader)(), strict=True):
            torch.testing.assert_close(ours.features.to_dense(), theirs.features.to_dense())
            torch.testing.assert_close(ours.labels, theirs.labels, equal_nan=True)
            assert torch.equal(ours.index, theirs.index)
    torch.testing.assert_close(mapped.train_set.labels, other.train_set.labels, equal_nan=True)


def test_few_rows_fit_the_scaling(stored):
    data = open_mapped(stored[0])
    assert MappedDataModule(data, scaling=lambda rows: unscaled(rows[:3]), scaling_rows=3).num_labels == 2
    seen = []
    MappedDataModule(data, scaling=lambda rows: seen.append(rows.shape) or unscaled(rows), scaling_rows=3)
    assert seen == [(3, 6)]
    with pytest.raises(ValueError, match="scaling_rows"):
        MappedDataModule(data, scaling_rows=0)


def test_all_features_at_once_are_refused(stored):
    with pytest.raises(TypeError, match="features: expected features in memory"):
        np.asarray(open_mapped(stored[0]).features)


@pytest.mark.parametrize("name", ["labels.npy", "features.npy", "indptr.npy", "data.json"])
@pytest.mark.parametrize("damage", ["cut", "empty", "gone"])
def test_damaged_files_are_named(stored, name, damage):
    file = stored[0] / name
    if not file.exists():
        assert ("indptr" in name) != (stored[0] / "indptr.npy").exists()
        return
    content = file.read_bytes()
    file.unlink()
    if damage != "gone":
        file.write_bytes(content[: len(content) // 2 if damage == "cut" else 0])
    with pytest.raises(FileNotFoundError if damage == "gone" else ValueError, match=name):
        open_mapped(stored[0])


@pytest.mark.parametrize(
    ("part", "value", "message"),
    [
        ("indptr", 10**15, r"indptr\.npy: expected ascending numbers"),
        ("indptr", -1, r"indptr\.npy: expected ascending numbers"),
        ("indices", 6, r"data\.json: .*indices must be < 6"),
        ("indptr", 0.5, "indptr: expected integers, one axis"),
    ],
)
def test_sparse_rows_that_cannot_be_are_refused(tmp_path, part, value, message):
    features, labels = arrays(sparse=True)
    write_mapped(tmp_path / "data", [(features, labels)], label_names=NAMES)
    file = tmp_path / "data" / f"{part}.npy"
    damaged = np.load(file).astype(type(value))
    damaged[2] = value
    np.save(file, damaged)
    with pytest.raises(ValueError, match=message):
        open_mapped(tmp_path / "data").features[:10]


def test_a_file_that_is_cut_while_it_is_used_is_named(stored):
    data = open_mapped(stored[0])
    file = stored[0] / ("data.npy" if data.features[:1].__class__ is csr_array else "features.npy")
    file.write_bytes(file.read_bytes()[:-8])
    assert data.features[:30].shape == (30, 6)
    with pytest.raises(ValueError, match=rf"{file.name}: .* got 8 bytes fewer"):
        data.features[:]


def test_rows_that_are_not_there_are_refused(stored):
    data = open_mapped(stored[0])
    np.testing.assert_array_equal(data.labels[[-1, 0]], data.labels[[49, 0]])
    for row in (50, -51):
        with pytest.raises(IndexError, match="rows: expected row numbers below 50"):
            data.labels[[row]]


def test_memory_does_not_grow_with_the_data(tmp_path):
    def rows() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for _ in range(32):
            yield np.ones((1000, 1000), np.float32), np.ones((1000, 2))

    write_mapped(tmp_path / "data", rows(), label_names=NAMES)
    # A process of its own, whose peak is not that of other tests.
    code = (
        "import sys; import numpy as np; from lmbm_torch.data import open_mapped\n"
        "def peak(): return int(open('/proc/self/status').read().split('VmHWM:')[1].split()[0]) // 1024\n"
        "features, before = open_mapped(sys.argv[1]).features, peak()\n"
        "drawn = np.random.default_rng(0).permutation(32_000)\n"
        "for first in range(0, 32_000, 250): features[drawn[first : first + 250]]\n"
        "print(peak() - before)"
    )
    run = [sys.executable, "-c", code, str(tmp_path / "data")]
    grown = int(subprocess.run(run, check=True, capture_output=True, text=True).stdout)
    assert grown < 12, "MiB, of 122 on the disk and 1 in each batch"


def test_values_are_looked_at_when_they_are_read(tmp_path):
    features, labels = arrays(sparse=False)
    write_mapped(tmp_path / "data", [(features, labels)], label_names=NAMES)
    file = tmp_path / "data" / "features.npy"
    damaged = np.load(file)
    damaged[7, 0] = np.nan
    np.save(file, damaged)
    data = open_mapped(tmp_path / "data")
    assert data.features[:7].shape == (7, 6)
    with pytest.raises(ValueError, match="features: expected finite values, got 1 NaN"):
        data.features[[7]]


@pytest.mark.parametrize(
    ("train", "message"),
    [
        ([], "train: expected at least one part, all with equal columns"),
        ([(np.ones((2, 3)), np.ones((2, 1)))], r"labels: expected shape \(2, 2\)"),
        ([(np.ones((2, 3)), np.full((2, 2), 2.0))], "labels: expected 0, 1 or NaN"),
        ([(np.full((2, 3), np.inf), np.ones((2, 2)))], "features: expected finite"),
        ([(np.ones((2, 3)), np.ones((2, 2))), (np.ones((2, 4)), np.ones((2, 2)))], "train: expected parts"),
    ],
)
def test_bad_parts_are_refused_and_leave_no_data_set(tmp_path, train, message):
    with pytest.raises(ValueError, match=message):
        write_mapped(tmp_path / "data", train, label_names=NAMES)
    with pytest.raises(FileNotFoundError, match=r"data\.json"):
        open_mapped(tmp_path / "data")


@pytest.mark.parametrize("num_rows", [1000, 100_000])
def test_a_full_disk_is_named_and_leaves_no_data_set(tmp_path, num_rows):
    train = [(np.ones((num_rows, 2), np.float32), np.ones((num_rows, 2)))]
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    # No file may grow beyond this, which ends a write as a full disk does.
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, hard))
    try:
        with pytest.raises(OSError, match=r"File too large: '.*\.npy'"):
            write_mapped(tmp_path / "data", train, label_names=NAMES)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    with pytest.raises(FileNotFoundError, match=r"data\.json"):
        open_mapped(tmp_path / "data")


def test_a_folder_is_never_overwritten(stored):
    with pytest.raises(FileExistsError):
        write_mapped(stored[0], [], label_names=NAMES)


def test_descriptions_that_do_not_fit_are_refused(stored):
    file = stored[0] / "data.json"
    said = json.loads(file.read_text())
    for change, message in (
        ({"train": 41}, r"labels: expected shape \(51, at least 1\)"),
        ({"train": 10**15}, "labels: expected shape"),
        ({"train": -10, "test": 60}, "train: expected a value of type int, got -10"),
        ({"train": 0, "test": 50}, "train: expected at least one row"),
        ({"num_features": True}, "num_features: expected a value of type int, got True"),
        ({"label_names": ["one"]}, "labels: expected shape"),
        ({"label_names": "ab"}, "label_names: expected a value of type list, got 'ab'"),
        ({"label_names": ["sun", "sun"]}, "label_names: expected distinct names"),
        ({"label_names": ["sun", 1]}, "label_names: expected a tuple of strings"),
        ({"feature_names": ["a"]}, "features: expected shape"),
        ({"name": 1}, "name: expected a value of type str, got 1"),
    ):
        file.write_text(json.dumps({**said, **change}))
        with pytest.raises(ValueError, match=rf"data\.json: {message}"):
            open_mapped(stored[0])


@pytest.mark.parametrize("content", ["[" * 10**5, "{}", "[]", "7", '{"train": Infinity}', "\x00"])
def test_what_is_no_description_is_refused(stored, content):
    file = stored[0] / "data.json"
    file.write_text(content)
    with pytest.raises(ValueError, match=r"path: .*data\.json: "):
        open_mapped(stored[0])


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((50, 2), "S0"), "expected an array of numbers in row-major order, got dtype"),
        (np.zeros((50, 2), object), "expected an array of numbers"),
        (np.zeros((2, 50), np.int8).T, "expected an array of numbers"),
    ],
)
def test_arrays_of_another_kind_are_refused(stored, array, message):
    np.save(stored[0] / "labels.npy", array, allow_pickle=True)
    with pytest.raises(ValueError, match=rf"labels\.npy: {message}"):
        open_mapped(stored[0])


def test_a_header_that_announces_more_than_there_is_is_refused(stored):
    said = {"descr": "|i1", "fortran_order": False}
    # The last has as many numbers as a count of 64 bits cannot tell from none.
    for shape in ((10**9, 2), (2**62, 4)):
        with (stored[0] / "labels.npy").open("wb") as stream:
            np.lib.format.write_array_header_1_0(stream, {**said, "shape": shape})
        with pytest.raises(ValueError, match=rf"labels\.npy: expected {shape[0] * shape[1]} numbers"):
            open_mapped(stored[0])
