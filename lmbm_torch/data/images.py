"""Binary images, and data sets made of images: restoration of corrupted pixels, reading of digits."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from lmbm_torch.checks import check_labels, check_shape
from lmbm_torch.data.dataset import MultilabelData
from lmbm_torch.data.features import numbered
from lmbm_torch.data.formats.npz import open_archive
from lmbm_torch.data.named import data_folder
from lmbm_torch.data.seven_segment import SEGMENTS, SevenSegment, bundled_digits
from lmbm_torch.files import reading
from lmbm_torch.incoming import UNREADABLE, open_compressed
from lmbm_torch.shapes import Float, Int, Shaped

_TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_AT_ONCE = 2**24


def read_idx(path: str | PathLike) -> np.ndarray:
    """Read an array in MNIST's idx format, gzipped or not; the result has the computer's byte order.

    Raises:
        FileNotFoundError: the file does not exist.
        ValueError: the file is no idx file, or the length contradicts the header; the message names the file.
    """
    with reading(path, struct.error, *UNREADABLE) as file:
        with open_compressed(file) as stream:
            start = stream.read(4)
            zeros, code, rank = struct.unpack(">HBB", start)
            if zeros or code not in _TYPES:
                raise ValueError(
                    f"expected an idx file (the format of MNIST), got a file that starts with {start!r}"
                )
            shape = struct.unpack(f">{rank}I", stream.read(4 * rank))
            kind = np.dtype(_TYPES[code])
            size = kind.itemsize * math.prod(shape)
            numbers = _read(stream, size + 1)
        if len(numbers) != size:
            more = " at least" if len(numbers) > size else ""
            raise ValueError(f"expected numbers of shape {shape}, got {len(numbers)} bytes{more}")
        return np.frombuffer(numbers, kind).reshape(shape).astype(kind.newbyteorder("="))


def _read(stream: Any, most: int) -> bytes:
    """Read at most ``most`` bytes, because a small compressed file may hold data of any size."""
    parts = []
    while most > 0 and (part := stream.read(min(most, _AT_ONCE))):
        parts.append(part)
        most -= len(part)
    return b"".join(parts)


Corruption = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""(images, their rows in the data set) → corrupted images, as in :mod:`lmbm_torch.data.corruptions`."""

# Grey values above this, half of 255, become 1 (belief_propagation_in_crbms_2017, Section 6).
_INK = 127
_MNIST_VALIDATION = 10_000


@dataclass(frozen=True, eq=False, repr=False)
class BinaryImages:
    """Images of {0, 1} pixels, and the rows for training, validation and testing.

    Args:
        name: name for messages and reports.
        pixels: (images, height, width), uint8.
        train, validation, test: rows of each part.
        digits: (images,), the digit 0 … 9 in each image; None if the digits are unknown or there are none.

    Raises:
        ValueError: pixels have another shape, dtype or value; or ``digits`` are not 0 … 9, one per image.
    """

    name: str
    pixels: Shaped[np.ndarray, "images height width"]
    train: Int[np.ndarray, " train"]
    validation: Int[np.ndarray, " validation"]
    test: Int[np.ndarray, " test"]
    digits: Shaped[np.ndarray, " images"] | None = None

    def __post_init__(self) -> None:
        if self.pixels.ndim != 3 or self.pixels.dtype != np.uint8:
            raise ValueError(
                "pixels: expected shape (images, height, width) in uint8, "
                f"got {self.pixels.shape} in {self.pixels.dtype}"
            )
        check_labels("pixels", self.pixels)
        if self.digits is not None:
            check_shape("digits", self.digits, len(self.pixels))
            if others := sorted({*self.digits.tolist()} - {*range(10)}):
                raise ValueError(f"digits: expected numbers from 0 to 9, got {others}")

    def __repr__(self) -> str:
        counts = f"{len(self.train)} to train, {len(self.validation)} to validate, {len(self.test)} to test"
        return f"<{self.name}: {counts}, {self.pixels.shape[1]} × {self.pixels.shape[2]} pixels>"


def first_images(
    images: BinaryImages, train: int | None = None, validation: int | None = None, test: int | None = None
) -> BinaryImages:
    """Return the first images of each part, for a smaller study.

    Args:
        images: the images of all parts.
        train, validation, test: number of images of each part; None for all images of the part.

    Raises:
        ValueError: a part has fewer images.
    """
    parts = {}
    for name, count in (("train", train), ("validation", validation), ("test", test)):
        rows = getattr(images, name)
        if count is not None and not 0 <= count <= len(rows):
            raise ValueError(f"{name}: expected a number of images from 0 to {len(rows)}, got {count}")
        parts[name] = rows[:count]
    return replace(images, **parts)


def restoration(images: BinaryImages, corruption: Corruption) -> MultilabelData:
    """Return a data set with corrupted pixels as features and clean pixels as labels.

    Only images of the three parts are used: first training, then validation, then testing, in float32.

    Args:
        images: clean images.
        corruption: a corruption, such as :class:`~lmbm_torch.data.corruptions.Flip`.
    """
    rows = _rows_in_parts(images)
    clean = images.pixels[rows]
    names = numbered("pixel", clean[0].size)
    return _problem(images, str(corruption), corruption(clean, rows), _flat(clean), names)


def alone(images: BinaryImages) -> MultilabelData:
    """Return a data set with pixels as labels, for models of images without input; the only feature is 0.

    The rows are those of :func:`restoration`.

    Args:
        images: clean images.
    """
    clean = images.pixels[_rows_in_parts(images)]
    nothing = np.zeros((len(clean), 1, 1), np.uint8)
    return _problem(images, "alone", nothing, _flat(clean), numbered("pixel", clean[0].size))


def seven_segments(images: BinaryImages) -> MultilabelData:
    """Return a data set with pixels as features and the lit segments that display the digit as labels.

    The rows are those of :func:`restoration`, and the labels those of :class:`~lmbm_torch.data.SevenSegment`.

    Raises:
        ValueError: the digits in the images are unknown.
    """
    if images.digits is None:
        raise ValueError(f"images: expected images with known digits, got {images.name} without digits")
    rows = _rows_in_parts(images)
    labels = SevenSegment.codes()[images.digits[rows]]
    return _problem(images, "seven segments", images.pixels[rows], labels, SEGMENTS)


def mnist(folder: str | PathLike | None = None, seed: int = 0) -> BinaryImages:
    """Read MNIST; a pixel is 1 if the grey value is above 127: 50,000 / 10,000 / 10,000 images of 28 × 28.

    The folder ``<folder>/mnist`` has ``mnist.npz`` with ``x_train`` and ``x_test``, or the two published idx
    files of images, gzipped or not. The digits come from ``y_train`` and ``y_test``, or from the two idx
    files of labels; without these the digits are unknown.

    Args:
        folder: folder of data sets; by default the environment variable LMBM_DATA.
        seed: seed of the validation part, which is drawn from the 60,000 training images.

    Raises:
        FileNotFoundError: there are no images, or only one part has labels.
        ValueError: no folder is given, or a file is unreadable.
    """
    grey, train, validation, test, shown = _grey_mnist(folder, seed)
    return BinaryImages("MNIST", (grey > _INK).astype(np.uint8), train, validation, test, shown)


def sampled_mnist(folder: str | PathLike | None = None, seed: int = 0, pixel_seed: int = 0) -> BinaryImages:
    """Read MNIST as :func:`mnist`, but draw each pixel: 1 with the probability grey value / 255.

    This is the convention of Salakhutdinov and Murray (2008). Such images are harder to model than images by
    a threshold, and results of papers differ by the draw.

    Args:
        folder, seed: see :func:`mnist`.
        pixel_seed: seed of the draws of the pixels.

    Raises:
        FileNotFoundError, ValueError: see :func:`mnist`.
    """
    grey, train, validation, test, shown = _grey_mnist(folder, seed)
    uniform = np.random.default_rng(pixel_seed).random(grey.shape, dtype=np.float32)
    pixels = (uniform < grey / np.float32(255)).astype(np.uint8)
    return BinaryImages("MNIST, pixels drawn", pixels, train, validation, test, shown)


def silhouettes(folder: str | PathLike | None = None) -> BinaryImages:
    """Read Caltech 101 Silhouettes: objects are 0, background is 1; 4,100 / 2,264 / 2,307 images, 28 × 28.

    The file ``<folder>/caltech101_silhouettes/caltech101_silhouettes_28_split1.npz`` has the arrays
    ``x_train``, ``x_val`` and ``x_test`` of 784 columns, like the published file.

    Args:
        folder: folder of data sets; by default the environment variable LMBM_DATA.

    Raises:
        FileNotFoundError: the file does not exist.
        ValueError: no folder is given, or a file is unreadable.
    """
    path = data_folder(folder) / "caltech101_silhouettes" / "caltech101_silhouettes_28_split1.npz"
    with open_archive(path, "folder") as archive:
        parts = [archive[f"x_{name}"] for name in ("train", "val", "test")]
    rows = _consecutive(*map(len, parts))
    # The file stores pixels column by column: transpose the images.
    pixels = np.concatenate(parts).reshape(-1, 28, 28).transpose(0, 2, 1).astype(np.uint8)
    return BinaryImages("Caltech 101 Silhouettes", pixels, *rows)


def digits() -> BinaryImages:
    """Return scikit-learn's digits; grey values from 8 (of 16) are 1: 1,000 / 297 / 500 images of 8 × 8."""
    grey, shown = bundled_digits()
    pixels = (grey.reshape(-1, 8, 8) >= 8).astype(np.uint8)
    return BinaryImages("digits", pixels, *_consecutive(1000, 297, 500), digits=shown)


def _grey_mnist(
    folder: str | PathLike | None, seed: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray | None]:
    """Return grey values, rows for training, validation and testing, and digits."""
    place = data_folder(folder) / "mnist"
    read = _mnist_archive if (place / "mnist.npz").is_file() else _mnist_files
    (train, test), labels = read(place)
    order = np.random.default_rng(seed).permutation(len(train))
    held, kept = np.sort(order[:_MNIST_VALIDATION]), np.sort(order[_MNIST_VALIDATION:])
    grey = np.concatenate([train, test])
    shown = np.concatenate(labels) if labels else None
    return grey, kept, held, np.arange(len(train), len(grey)), shown


def _mnist_archive(place: Path) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Return images and labels of both parts, without labels if the archive has none."""
    with open_archive(place / "mnist.npz") as archive:
        labels = [archive["y_train"], archive["y_test"]] if "y_train" in archive else []
        return [archive["x_train"], archive["x_test"]], labels


def _mnist_files(place: Path) -> tuple[list[np.ndarray], list[np.ndarray]]:
    images, labels = (
        [_packed_or_not(place / f"{part}-{kind}-ubyte") for part in ("train", "t10k")]
        for kind in ("images-idx3", "labels-idx1")
    )
    return [*map(read_idx, images)], [*map(read_idx, labels)] if labels[0].is_file() else []


def _packed_or_not(path: Path) -> Path:
    packed = path.with_name(f"{path.name}.gz")
    return packed if packed.is_file() else path


def _rows_in_parts(images: BinaryImages) -> Int[np.ndarray, " rows"]:
    return np.concatenate([images.train, images.validation, images.test])


def _consecutive(*counts: int) -> list[Int[np.ndarray, " rows"]]:
    return np.split(np.arange(sum(counts)), np.cumsum(counts)[:-1])


def _problem(
    images: BinaryImages,
    name: str,
    pixels: Shaped[np.ndarray, "rows height width"],
    labels: Float[np.ndarray, "rows labels"],
    label_names: tuple[str, ...],
) -> MultilabelData:
    """Return a data set of pixels and labels, which have the rows of :func:`_rows_in_parts`."""
    train, validation, test = _consecutive(len(images.train), len(images.validation), len(images.test))
    features, title = _flat(pixels), f"{images.name}, {name}"
    names = label_names, numbered("pixel", features.shape[1])
    return MultilabelData(title, features, labels, *names, train, test, validation)


def _flat(pixels: np.ndarray) -> np.ndarray:
    return pixels.reshape(len(pixels), -1).astype(np.float32)
