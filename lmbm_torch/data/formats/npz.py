"""NumPy archives with arrays of conventional names."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path

import numpy as np
from numpy.lib.npyio import NpzFile
from scipy.sparse import csr_array, issparse

from lmbm_torch.data.dataset import MultilabelData, without_split
from lmbm_torch.data.features import Features, check_dense, numbered
from lmbm_torch.files import reading
from lmbm_torch.incoming import check_archive, read_header

_DAMAGE = (
    # zipfile raises RuntimeError, too, for instance for an unknown compression.
    *(OSError, EOFError, KeyError, RuntimeError, zipfile.BadZipFile, zlib.error),
    # Arrays with an unexpected shape or type lead to these exceptions.
    *(IndexError, OverflowError, TypeError),
)
_CSR_PARTS = ("data", "indices", "indptr", "shape")


def read_npz(path: str | PathLike, num_labels: int | None = None) -> MultilabelData:
    """Read ``x_train``, ``y_train``, ``x_test`` and ``y_test``, or ``x`` and ``y`` of data without a split.

    Features are a matrix, or images ``(n, height, width)`` or ``(n, channels, height, width)``, whose pixels
    become features ``pixel_0`` and so on. A sparse matrix is stored as its CSR parts ``<name>_data``,
    ``<name>_indices``, ``<name>_indptr`` and ``<name>_shape``; labels are made dense. ``label_names`` and
    ``feature_names`` are read if present. Types without loss in float32 become float32, others float64.
    Nothing is unpickled.

    Args:
        num_labels: number of labels for an archive with only ``x`` (new rows); all labels are then NaN.

    Raises:
        FileNotFoundError: the file does not exist.
        ValueError: the archive is truncated or corrupted; an array is missing; or a label is not 0, 1 or NaN,
            but, for instance, a class index. The message names the file.

    Examples:
        >>> import tempfile, pathlib
        >>> import numpy as np
        >>> from lmbm_torch.data import read_npz
        >>> path = pathlib.Path(tempfile.mkdtemp(), "toy.npz")
        >>> np.savez(path, x=np.eye(2), y=np.array([[1, 0], [0, 1]]), label_names=["sun", "sea"])
        >>> read_npz(path)
        <toy: 2 instances to train and 0 to test, 2 features, 2 labels>
    """
    stem = Path(path).stem
    with open_archive(path) as archive:
        if any(name.startswith("x_train") for name in archive):
            return _part(stem, archive, "_train").with_test(_part(stem, archive, "_test"))
        is_labelled = num_labels is None or any(name.startswith("y") for name in archive)
        return _part(stem, archive, "", None if is_labelled else num_labels)


@contextmanager
def open_archive(path: str | PathLike, argument: str = "path") -> Iterator[NpzFile]:
    """Open the arrays of a file after a comparison of checksums; no damaged header is interpreted.

    Raises:
        FileNotFoundError: the file does not exist.
        ValueError: the archive is truncated or corrupted, or arrays have unexpected names, shapes or types.
            The message names argument and file.
    """
    with reading(path, *_DAMAGE, argument=argument) as file:
        with zipfile.ZipFile(file) as checked:
            check_archive(file, checked)
            if damaged := checked.testzip():
                raise ValueError(f"expected an undamaged archive, got the corrupted entry {damaged}")
            for entry in checked.infolist():
                try:
                    with checked.open(entry) as stream:
                        read_header(stream, entry.file_size)
                except ValueError as error:
                    raise ValueError(f"{entry.filename}: {error}") from error
        with np.load(file, allow_pickle=False) as archive:
            yield archive


def _part(name: str, archive: NpzFile, suffix: str, num_unknown: int | None = None) -> MultilabelData:
    """Return a part of the data; with ``num_unknown``, all labels are NaN and stored labels are not read."""
    features = _matrix(archive, "x" + suffix)
    if num_unknown is not None:
        labels = np.full((features.shape[0], num_unknown), np.nan)
    else:
        labels = _matrix(archive, "y" + suffix)
        check_dense("y" + suffix, labels.shape[0], labels.shape[1], "labels are never sparse")
        labels = labels.toarray() if issparse(labels) else labels
    prefix = "pixel" if "x" + suffix in archive and archive["x" + suffix].ndim > 2 else "feature"
    names = _names(archive, "label", labels.shape[1]), _names(archive, "feature", features.shape[1], prefix)
    return without_split(name, features, labels, *names)


def _matrix(archive: NpzFile, name: str) -> Features:
    matrix: Features = archive[name] if name in archive else _from_csr_parts(archive, name)
    if name[0] == "x" and np.ndim(matrix) in (3, 4) and len(matrix):
        matrix = matrix.reshape(len(matrix), -1)
    if np.ndim(matrix) != 2 or not np.can_cast(matrix.dtype, np.float64, casting="same_kind"):
        shape = np.shape(matrix)
        raise ValueError(f"{name}: expected a matrix of numbers, got shape {shape} and type {matrix.dtype}")
    return matrix.astype(np.float32 if np.can_cast(matrix.dtype, np.float32) else np.float64)


def _from_csr_parts(archive: NpzFile, name: str) -> csr_array:
    if missing := [f"{name}_{part}" for part in _CSR_PARTS if f"{name}_{part}" not in archive]:
        raise ValueError(f"expected the array {name} or its CSR parts in the file, got no array {missing}")
    values, indices, indptr, shape = (archive[f"{name}_{part}"] for part in _CSR_PARTS)
    for part, places in (("indices", indices), ("indptr", indptr), ("shape", shape)):
        if places.dtype.kind not in "iu":
            raise ValueError(f"{name}_{part}: expected integers, got {places.dtype}")
    matrix = csr_array((values, indices, indptr), shape=tuple(shape.tolist()))
    matrix.check_format(full_check=True)
    matrix.sum_duplicates()
    return matrix


def _names(archive: NpzFile, kind: str, count: int, prefix: str | None = None) -> tuple[str, ...]:
    key = f"{kind}_names"
    return tuple(map(str, archive[key])) if key in archive else numbered(prefix or kind, count)
