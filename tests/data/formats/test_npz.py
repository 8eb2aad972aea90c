from __future__ import annotations

import io
import math
import struct
import zipfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array

from lmbm_torch.data import read_npz

X, Y = np.arange(12.0).reshape(4, 3) / 8, np.array([[0, 1], [1, 0], [1, 1], [0, 0]], dtype=np.uint8)


def csr_parts(name, matrix):
    matrix = csr_array(matrix)
    parts = {"data": matrix.data, "indices": matrix.indices, "indptr": matrix.indptr, "shape": matrix.shape}
    return {f"{name}_{part}": np.asarray(value) for part, value in parts.items()}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "toy.npz"


def test_a_split_and_names_are_kept(path):
    names = {"label_names": np.array(["u", "v"]), "feature_names": np.array(["f", "g", "h"])}
    np.savez_compressed(path, x_train=X, y_train=Y, x_test=X[:2], y_test=Y[:2], other=np.array(3), **names)
    data = read_npz(path)
    np.testing.assert_array_equal(data.train_features, X)
    np.testing.assert_array_equal(data.test_features, X[:2])
    np.testing.assert_array_equal(data.train_labels, Y)
    assert (data.name, data.label_names, data.feature_names) == ("toy", ("u", "v"), ("f", "g", "h"))


def test_no_split_is_all_training_part(path):
    np.savez(path, x=X, y=Y)
    data = read_npz(path)
    assert (len(data.train), len(data.test)) == (4, 0)
    assert data.label_names == ("label_0", "label_1")
    assert data.feature_names == ("feature_0", "feature_1", "feature_2")


def test_csr_parts_stay_sparse(path):
    np.savez(path, **csr_parts("x_train", X), y_train=Y, **csr_parts("x_test", X), **csr_parts("y_test", Y))
    data = read_npz(path)
    assert isinstance(data.features, csr_array)
    np.testing.assert_array_equal(data.test_features.toarray(), X)
    np.testing.assert_array_equal(data.test_labels, Y)


@pytest.mark.parametrize(
    ("given_dtype", "read_dtype"),
    [
        ("uint8", "float32"),
        ("float16", "float32"),
        ("float32", "float32"),
        ("int32", "float64"),
        ("f8", "f8"),
    ],
)
def test_types_are_never_narrowed(path, given_dtype, read_dtype):
    np.savez(path, x=X.astype(given_dtype), y=Y)
    data = read_npz(path)
    assert data.features.dtype == read_dtype
    np.testing.assert_array_equal(data.features, X.astype(given_dtype))


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": X}, "expected the array y or its CSR parts"),
        ({"x_train": X, "y_train": Y}, "expected the array x_test or its CSR parts"),
        ({"x": X, "y": Y[:, 0]}, "y: expected a matrix of numbers"),
        ({"x": X, "y": Y + 1}, "labels: expected 0, 1 or NaN"),
        ({"x": X, "y": Y[:3]}, "labels: expected shape"),
        ({"x": X * np.nan, "y": Y}, "features: expected finite values"),
        ({"x": X * 1j, "y": Y}, "x: expected a matrix of numbers"),
        ({"x": X.astype(str), "y": Y}, "x: expected a matrix of numbers"),
        ({"x": X.astype(object), "y": Y}, "allow_pickle=False"),
        ({"x": X, "y": Y, "label_names": np.array(["u"])}, "label_names: expected 2 names"),
        ({"x_data": X[0], "y": Y}, "x_indices"),
        ({**csr_parts("x", X), "x_indices": np.full(11, 7), "y": Y}, "indices|index"),
        ({**csr_parts("x", X), "x_indptr": np.array([0, 5, 2, 8, 11]), "y": Y}, "indptr"),
    ],
)
def test_bad_content_is_refused(path, arrays, message):
    np.savez(path, **arrays)
    with pytest.raises(ValueError, match=r"path: .*toy\.npz: .*(" + message + ")"):
        read_npz(path)


def test_other_files_and_no_file_are_refused(path):
    with pytest.raises(FileNotFoundError, match=r"path: .*toy\.npz"):
        read_npz(path)
    with path.open("wb") as file:
        np.save(file, X)
    with pytest.raises(ValueError, match=r"path: .*toy\.npz: .*not a zip"):
        read_npz(path)


@pytest.mark.parametrize("shape", [(4, 2, 3), (4, 3, 2, 2)])
def test_images_are_taken_as_they_are(path, shape):
    images = np.arange(np.prod(shape), dtype=np.uint8).reshape(shape)
    np.savez(path, x=images, y=Y)
    data = read_npz(path)
    assert np.array_equal(data.features.reshape(shape), images)
    assert data.features.dtype == np.float32
    assert data.feature_names[:2] == ("pixel_0", "pixel_1")
    np.savez(path, x=X, y=Y[:, :, None])
    with pytest.raises(ValueError, match=r"y: expected a matrix of numbers, got shape \(4, \d, 1\)"):
        read_npz(path)


def test_truncated_files_are_refused(path):
    np.savez_compressed(path, x=X, y=Y)
    content = path.read_bytes()
    for length in range(len(content)):
        path.write_bytes(content[:length])
        with pytest.raises(ValueError, match=r"path: .*toy\.npz"):
            read_npz(path)


@given(position=st.integers(0, 2000), bit=st.integers(0, 7), compressed=st.booleans())
@settings(max_examples=200)
def test_a_flipped_bit_is_refused_or_harmless(tmp_path_factory, position, bit, compressed):
    path = tmp_path_factory.mktemp("npz") / "flipped.npz"
    (np.savez_compressed if compressed else np.savez)(path, x=X, y=Y)
    whole = read_npz(path).sha256()
    content = bytearray(path.read_bytes())
    content[position % len(content)] ^= 1 << bit
    path.write_bytes(content)
    try:
        assert read_npz(path).sha256() == whole
    except ValueError as error:
        assert "flipped.npz" in str(error)  # noqa: PT017


def announcing(shape, version=1):
    """An array's file that holds nothing of what it announces."""
    stream = io.BytesIO()
    said = {"descr": "<f8", "fortran_order": False, "shape": shape}
    write = {1: np.lib.format.write_array_header_1_0, 2: np.lib.format.write_array_header_2_0}[version]
    write(stream, said)
    return stream.getvalue()


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("shape", [(10**6, 10**6), (2**62, 4), (3, 3)])
def test_an_array_that_announces_more_than_there_is_takes_no_memory(path, shape, version):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", announcing(shape, version))
    with pytest.raises(
        ValueError, match=rf"toy\.npz: x\.npy: expected {math.prod(shape)} numbers as the header"
    ):
        read_npz(path)


@pytest.mark.parametrize("header", ["-" * 9000 + "1", "(" * 9000, "{'descr': ", "\x00", "[" * 90 + "]" * 90])
def test_headers_that_cannot_be_parsed_are_refused(path, header):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode())
    with pytest.raises(ValueError, match=r"toy\.npz: x\.npy: "):
        read_npz(path)


def test_labels_that_would_fill_memory_are_refused(path):
    parts = csr_parts("y", Y)
    np.savez(path, x=X, **{**parts, "y_shape": np.array([4, 2**40])})
    with pytest.raises(
        ValueError, match=r"toy\.npz: y: expected at most .* entries to convert to a dense matrix"
    ):
        read_npz(path)


@pytest.mark.parametrize("name", ["../x", "/x", "a/../../x", "x/"])
def test_names_that_lead_elsewhere_are_names_and_nothing_is_written(path, name):
    with zipfile.ZipFile(path, "w") as archive:
        stream = io.BytesIO()
        np.save(stream, X)
        archive.writestr(f"{name}.npy", stream.getvalue())
    with pytest.raises(ValueError, match=r"toy\.npz: expected the array x"):
        read_npz(path)
    assert list(path.parent.iterdir()) == [path]


def test_a_folder_is_no_file(tmp_path):
    with pytest.raises(FileNotFoundError, match="path: expected a file, found a folder at"):
        read_npz(tmp_path)
