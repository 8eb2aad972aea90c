"""Data sets larger than memory: arrays in a folder, from which only the needed rows are read.

The folder holds ``labels.npy``, int8 with −1 for a missing label, and either ``features.npy`` or the CSR
parts ``data.npy``, ``indices.npy`` and ``indptr.npy``. Training rows precede test rows. ``data.json`` has the
names and is written last.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from io import BufferedReader, FileIO
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from lmbm_torch.checks import check_labels, check_shape
from lmbm_torch.data.dataset import MultilabelData, check_names
from lmbm_torch.data.features import Features, check_features, numbered
from lmbm_torch.files import reading, write_text
from lmbm_torch.incoming import read_header
from lmbm_torch.shapes import Float, Int

DESCRIPTION = "data.json"
Part = tuple[Features, np.ndarray]
"""Features and labels of some rows, in the form of :class:`~lmbm_torch.data.dataset.MultilabelData`."""
Rows = slice | Sequence[int] | np.ndarray


# The required entries of data.json and their types; names of features may be left out.
_DESCRIBED = {
    "name": str,
    "train": int,
    "test": int,
    "sparse": bool,
    "num_features": int,
    "label_names": list,
}


class StoredArray:
    """An array in an npy file, from which only the needed rows are read.

    The file is not mapped into memory. With memory mapping, the system would read up to 1 MiB around each
    row, which counts as memory of this process (250 MiB for 256 rows of 4 kB), and a truncated file would
    kill the process. Each reading opens the file: processes and threads share no file position.

    Args:
        path: path of the file.

    Raises:
        FileNotFoundError: the file does not exist.
        ValueError: the file is no npy file or is truncated, or the array holds objects or is in Fortran
            order. The message names the file.
    """

    def __init__(self, path: str | PathLike) -> None:
        with reading(path, OSError) as file, file.open("rb") as stream:
            self.shape, is_fortran, self.dtype = read_header(stream, file.stat().st_size)
            if is_fortran or self.dtype.kind not in "biuf":
                raise ValueError(f"expected an array of numbers in row-major order, got dtype {self.dtype}")
            self.path, self._offset = file, stream.tell()

    def __getitem__(self, rows: Rows) -> np.ndarray:
        """Return some rows; consecutive rows are read in one step.

        Raises:
            IndexError: a row does not exist.
            ValueError: the file has become shorter since it was opened. The message names the file.
        """
        numbers = _numbers(rows, self.shape[0])
        taken = np.empty((len(numbers), *self.shape[1:]), self.dtype)
        if taken.size == 0:
            return taken
        content = taken.reshape(-1).view(np.uint8).data
        width = len(content) // len(numbers)
        ends = [*(np.flatnonzero(np.diff(numbers) != 1) + 1).tolist(), len(numbers)]
        # A raw file reads at most 2 GiB per call. A tiny buffer removes this limit without further reads.
        with reading(self.path, OSError) as file, BufferedReader(FileIO(file), 16) as stream:
            for first, last in zip([0, *ends], ends, strict=False):
                stream.seek(self._offset + int(numbers[first]) * width)
                place = content[first * width : last * width]
                if missing := len(place) - stream.readinto(place):
                    raise ValueError(
                        f"expected a file that keeps its size while it is open, got {missing} bytes fewer"
                    )
        return taken


class _Matrix:
    """The matrix of numbers in the file ``<name>.npy`` of a folder."""

    name: str

    def __init__(self, folder: Path) -> None:
        self._values = StoredArray(folder / f"{self.name}.npy")
        check_shape(self.name, self._values, None, None)
        self.shape: tuple[int, int] = self._values.shape  # pyright: ignore[reportAttributeAccessIssue]


class MappedFeatures(_Matrix):
    """Dense features on disk, ``(instances, features)``; an index reads rows, which must be finite.

    Raises:
        ValueError: rows that an index reads are damaged. The message names the file.
    """

    name = "features"

    def __getitem__(self, rows: Rows) -> Features:
        taken: Features = self._values[rows]
        with reading(self._values.path):
            check_features("features", taken)
        return taken

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        raise TypeError(
            "features: expected features in memory, because this method needs all rows, got features on disk"
        )


class MappedSparseFeatures(MappedFeatures):
    """Sparse features on disk, in CSR parts; an index reads rows as a CSR array.

    Args:
        num_features: number of columns, which the CSR parts do not hold.
    """

    def __init__(self, folder: Path, num_features: int) -> None:
        self._data, self._indices, self._indptr = (
            StoredArray(folder / f"{part}.npy") for part in ("data", "indices", "indptr")
        )
        check_shape("indices", self._indices, *self._data.shape)
        for name, part in (("indices", self._indices), ("indptr", self._indptr)):
            if len(part.shape) != 1 or not np.issubdtype(part.dtype, np.integer):
                raise ValueError(f"{name}: expected integers, one axis, got {part.dtype} of {part.shape}")
        self._description = folder / DESCRIPTION
        self.shape = (self._indptr.shape[0] - 1, num_features)

    def __getitem__(self, rows: Rows) -> Features:
        numbers = _numbers(rows, self.shape[0])
        # Convert to int64 first, because differences of uint64 would become floats.
        first, last = (self._indptr[each].astype(np.int64) for each in (numbers, numbers + 1))
        num_entries = self._data.shape[0]
        if not ((first >= 0) & (first <= last) & (last <= num_entries)).all():
            raise ValueError(
                f"path: {self._indptr.path}: expected ascending numbers from 0 to {num_entries}, got others"
            )
        indptr = np.concatenate([[0], np.cumsum(last - first)])
        # The place of each entry is the start of its row in the file plus the offset within the row.
        places = np.repeat(first - indptr[:-1], last - first) + np.arange(indptr[-1])
        parts = self._data[places], self._indices[places], indptr
        with reading(self._description):
            taken: Features = csr_array(parts, shape=(len(numbers), self.shape[1]))
            check_features("features", taken)
        return taken


class MappedLabels(_Matrix):
    """Labels on disk, ``(instances, labels)``; an index reads rows, float32 with NaN for missing labels."""

    name = "labels"

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Rows) -> Float[np.ndarray, "rows labels"]:
        stored = self._values[rows]
        labels = np.where(stored < 0, np.float32(np.nan), stored.astype(np.float32))
        with reading(self._values.path):
            check_labels("labels", labels, allow_missing=True)
        return labels


@dataclass(frozen=True, eq=False, repr=False)
class MappedData(MultilabelData):
    """A multi-label data set on disk; ``features[rows]`` and ``labels[rows]`` read rows.

    Raises:
        ValueError: a field does not fit the others; values are checked only when they are read.
    """

    def __post_init__(self) -> None:
        check_shape("labels", self.labels, self.features.shape[0], len(self.label_names))
        check_shape("features", self.features, None, len(self.feature_names))
        check_names(self)
        if len(self.train) == 0:
            raise ValueError("train: expected at least one row, got none")

    def with_split(self, train: Int[np.ndarray, " train"], test: Int[np.ndarray, " test"]) -> MappedData:
        """Return the same instances with other training and test parts."""
        return replace(self, train=train, test=test)

    def features_at(self, rows: Int[np.ndarray, " rows"]) -> SomeRows:
        """Return features of some rows without reading; slices of the result read the file."""
        return SomeRows(self.features, rows)


def open_mapped(path: str | PathLike) -> MappedData:
    """Open the data set in a folder that :func:`write_mapped` has written.

    Raises:
        FileNotFoundError: the folder or a file is missing.
        ValueError: a file is damaged, or files contradict each other. The message names the file.

    Examples:
        >>> from lmbm_torch.data import open_mapped
        >>> data = open_mapped("folder/of/write_mapped")  # doctest: +SKIP
    """
    folder = Path(path)
    with reading(folder / DESCRIPTION, KeyError, TypeError, RecursionError) as file:
        said = json.loads(file.read_text(encoding="utf-8"))
        for name, kind in _DESCRIBED.items():
            if type(said[name]) is not kind or (kind is int and said[name] < 0):
                raise ValueError(f"{name}: expected a value of type {kind.__name__}, got {said[name]!r}")
        num_features, num_train = said["num_features"], said["train"]
        names = tuple(said["label_names"]), tuple(said["feature_names"] or numbered("feature", num_features))
        features: Any = (
            MappedSparseFeatures(folder, num_features) if said["sparse"] else MappedFeatures(folder)
        )
        labels: Any = MappedLabels(folder)
        # The numbers of rows are checked before they are used, because a damaged file may claim any number.
        check_shape("labels", labels, num_train + said["test"], None)
        rows = np.arange(len(labels))
        return MappedData(said["name"], features, labels, *names, rows[:num_train], rows[num_train:])


class SomeRows:
    """Rows of features on disk in a given order; slices read the rows.

    Args:
        features: features of the data set.
        rows: row numbers.
    """

    def __init__(self, features: MappedFeatures, rows: Int[np.ndarray, " rows"]) -> None:
        self._features = features
        self._rows = rows
        self.shape = (len(rows), features.shape[1])

    def __getitem__(self, some: slice) -> Features:
        return self._features[self._rows[some]]


def write_mapped(
    path: str | PathLike,
    train: Iterable[Part],
    test: Iterable[Part] = (),
    *,
    label_names: Sequence[str],
    feature_names: Sequence[str] | None = None,
) -> None:
    """Write a data set to a new folder, part by part; memory holds one part at a time.

    Args:
        train, test: any number of parts, each a pair (features, labels), all dense or all CSR.
        feature_names: names of the features; by default feature_0, feature_1, …

    Raises:
        FileExistsError: the folder exists.
        OSError: a file cannot be written, for instance on a full disk; the message names the file.
        ValueError: there is no training part, or a part is invalid or has other columns than the first part.

    Examples:
        >>> import tempfile, pathlib
        >>> import numpy as np
        >>> from lmbm_torch.data import open_mapped, write_mapped
        >>> folder, labels = pathlib.Path(tempfile.mkdtemp(), "toy"), np.array([[1.0, 0.0], [0.0, np.nan]])
        >>> write_mapped(folder, [(np.eye(2), labels)], label_names=["sun", "sea"])
        >>> open_mapped(folder).labels[[1]].tolist()
        [[0.0, nan]]
    """
    folder = Path(path)
    folder.mkdir(parents=True)
    writers: dict[str, _ArrayWriter] = {}
    counts, widths = {"train": 0, "test": 0}, set()
    for name, parts in (("train", train), ("test", test)):
        for features, labels in parts:
            check_features("features", features)
            check_shape("labels", labels, features.shape[0], len(label_names))
            check_labels("labels", labels, allow_missing=True)
            widths.add((features.shape[1], isinstance(features, csr_array)))
            for key, rows in _stored(features, labels, writers).items():
                if key not in writers:
                    writers[key] = _ArrayWriter(folder / f"{key}.npy", rows)
                writers[key].append(rows)
            counts[name] += len(labels)
    if counts["train"] == 0 or len(widths) > 1:
        raise ValueError(f"train: expected at least one part, all with equal columns, got {sorted(widths)}")
    for writer in writers.values():
        writer.write_header()
    ((num_features, sparse),) = widths
    said = {
        "name": folder.name,
        **counts,
        "sparse": sparse,
        "num_features": num_features,
        "label_names": list(label_names),
        "feature_names": None if feature_names is None else list(feature_names),
    }
    write_text(folder / DESCRIPTION, json.dumps(said))


def _stored(
    features: Features, labels: np.ndarray, writers: dict[str, _ArrayWriter]
) -> dict[str, np.ndarray]:
    stored = {"labels": np.nan_to_num(labels, nan=-1).astype(np.int8)}
    if not isinstance(features, csr_array):
        return {**stored, "features": features}
    before = writers["data"].num_rows if "data" in writers else 0
    ends = features.indptr.astype(np.int64) + before
    # Each part's array begins with 0; only the first part's 0 is written.
    indptr = ends if "indptr" not in writers else ends[1:]
    return {**stored, "data": features.data, "indices": features.indices.astype(np.int32), "indptr": indptr}


class _ArrayWriter:
    """A writer of an npy file to which rows are added; the header has room for a larger number of rows."""

    def __init__(self, path: Path, like: np.ndarray) -> None:
        self._path = path
        self._like = like[:0]
        self.num_rows = 0
        self.write_header("xb")

    def append(self, rows: np.ndarray) -> None:
        if (rows.shape[1:], rows.dtype) != (self._like.shape[1:], self._like.dtype):
            raise ValueError(
                f"train: expected parts of type {self._like.dtype} with {self._like.shape[1:]} columns, got "
                f"{rows.dtype} with {rows.shape[1:]}"
            )
        with self._opened("ab") as stream:
            stream.write(np.ascontiguousarray(rows).tobytes())
        self.num_rows += len(rows)

    def write_header(self, mode: str = "r+b") -> None:
        said = {**np.lib.format.header_data_from_array_1_0(self._like), "fortran_order": False}
        shape = (self.num_rows, *self._like.shape[1:])
        with self._opened(mode) as stream:
            np.lib.format.write_array_header_1_0(stream, {**said, "shape": shape})

    @contextmanager
    def _opened(self, mode: str) -> Iterator[Any]:
        """Open the file; name the file in errors of writing."""
        try:
            with self._path.open(mode) as stream:
                yield stream
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self._path)) from error


def _numbers(rows: Rows, count: int) -> Int[np.ndarray, " rows"]:
    if isinstance(rows, slice):
        return np.arange(*rows.indices(count))
    numbers = np.asarray(rows, np.int64)
    if len(numbers) and not -count <= numbers.min() <= numbers.max() < count:
        raise IndexError(f"rows: expected row numbers below {count}, got {numbers.min()} to {numbers.max()}")
    return np.where(numbers < 0, numbers + count, numbers)
