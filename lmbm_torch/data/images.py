"""Clean binary images, and the problems of restoring them that corruptions make."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path

import numpy as np

from lmbm_torch.checks import check_labels
from lmbm_torch.data.dataset import MultilabelData, numbered
from lmbm_torch.data.formats.idx import read_idx
from lmbm_torch.data.formats.npz import open_archive
from lmbm_torch.data.named import data_folder
from lmbm_torch.shapes import Int, Shaped

Corruption = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""(images, their rows in the data set) → corrupted images, as in :mod:`lmbm_torch.data.corruptions`."""

# A grey value above half of 255 is ink (belief_propagation_in_crbms_2017, Section 6).
_INK = 127
_MNIST_VALIDATION = 10_000


@dataclass(frozen=True, eq=False, repr=False)
class BinaryImages:
    """Images of {0, 1} pixels, and which of them are for training, validation and testing.

    Args:
        name: for messages and reports.
        pixels: uint8.
        train, validation, test: rows.

    Raises:
        ValueError: pixels of another shape or dtype, or other values than 0 and 1.
    """

    name: str
    pixels: Shaped[np.ndarray, "images height width"]
    train: Int[np.ndarray, " train"]
    validation: Int[np.ndarray, " validation"]
    test: Int[np.ndarray, " test"]

    def __post_init__(self) -> None:
        if self.pixels.ndim != 3 or self.pixels.dtype != np.uint8:
            raise ValueError(
                "pixels: expected shape (images, height, width) in uint8, "
                f"got {self.pixels.shape} in {self.pixels.dtype}"
            )
        check_labels("pixels", self.pixels)

    def __repr__(self) -> str:
        counts = f"{len(self.train)} to train, {len(self.validation)} to validate, {len(self.test)} to test"
        return f"<{self.name}: {counts}, {self.pixels.shape[1]} × {self.pixels.shape[2]} pixels>"

    def first(self, train: int, validation: int, test: int) -> BinaryImages:
        """The first so many images of each part, for a smaller study.

        Raises:
            ValueError: a part has fewer.
        """
        parts = {}
        for name, count in (("train", train), ("validation", validation), ("test", test)):
            rows = getattr(self, name)
            if not 0 <= count <= len(rows):
                raise ValueError(f"{name}: expected 0 to {len(rows)} images, got {count}")
            parts[name] = rows[:count]
        return replace(self, **parts)


def restoration(images: BinaryImages, corruption: Corruption) -> MultilabelData:
    """The problem of finding the clean pixels, as labels, from the corrupted ones, as features.

    The images of the three parts alone, in float32: first those for training, then those for validation, then
    those for testing.

    Args:
        images: clean ones.
        corruption: such as :class:`~lmbm_torch.data.corruptions.Flip`.
    """
    parts = (images.train, images.validation, images.test)
    rows = np.concatenate(parts)
    clean = images.pixels[rows]
    names = numbered("pixel", clean[0].size)
    train, validation, test = np.split(np.arange(len(rows)), np.cumsum([len(part) for part in parts])[:-1])
    return MultilabelData(
        name=f"{images.name}, {corruption}",
        features=_flat(corruption(clean, rows)),
        labels=_flat(clean),
        label_names=names,
        feature_names=names,
        train=train,
        test=test,
        validation=validation,
    )


def mnist(folder: str | PathLike | None = None, seed: int = 0) -> BinaryImages:
    """MNIST, a pixel 1 where its grey value is above 127: 50,000 / 10,000 / 10,000 images of 28 × 28.

    Read from ``<folder>/mnist``: ``mnist.npz`` with ``x_train`` and ``x_test``, or the two published idx
    files of images, gzipped or not.

    Args:
        folder: by default the environment variable LMBM_DATA.
        seed: of the validation part, drawn from the 60,000 training images.

    Raises:
        FileNotFoundError: neither is there.
        ValueError: no folder given at all, or a file that cannot be read.
    """
    place = data_folder(folder) / "mnist"
    train, test = _mnist_archive(place) if (place / "mnist.npz").is_file() else _mnist_files(place)
    order = np.random.default_rng(seed).permutation(len(train))
    held, kept = np.sort(order[:_MNIST_VALIDATION]), np.sort(order[_MNIST_VALIDATION:])
    pixels = (np.concatenate([train, test]) > _INK).astype(np.uint8)
    return BinaryImages("MNIST", pixels, kept, held, np.arange(len(train), len(pixels)))


def silhouettes(folder: str | PathLike | None = None) -> BinaryImages:
    """Caltech 101 Silhouettes as they are stored, objects 0 on 1: 4,100 / 2,264 / 2,307 images of 28 × 28.

    Read from ``<folder>/caltech101_silhouettes/caltech101_silhouettes_28_split1.npz``, with the arrays
    ``x_train``, ``x_val`` and ``x_test`` of 784 columns, as in the published file; images come upright.

    Args:
        folder: by default the environment variable LMBM_DATA.

    Raises:
        FileNotFoundError: it is not there.
        ValueError: no folder given at all, or a file that cannot be read.
    """
    path = data_folder(folder) / "caltech101_silhouettes" / "caltech101_silhouettes_28_split1.npz"
    with open_archive(path, "folder") as archive:
        parts = [archive[f"x_{name}"] for name in ("train", "val", "test")]
    rows = np.split(np.arange(sum(map(len, parts))), np.cumsum([len(part) for part in parts])[:-1])
    # Stored column by column.
    pixels = np.concatenate(parts).reshape(-1, 28, 28).transpose(0, 2, 1).astype(np.uint8)
    return BinaryImages("Caltech 101 Silhouettes", pixels, *rows)


def digits() -> BinaryImages:
    """scikit-learn's bundled digits, a pixel 1 from half of its range: 1,000 / 297 / 500 images of 8 × 8."""
    from sklearn.datasets import load_digits

    grey, _ = load_digits(return_X_y=True)
    pixels = (grey.reshape(-1, 8, 8) >= 8).astype(np.uint8)
    train, validation, test = np.split(np.arange(len(pixels)), [1000, 1297])
    return BinaryImages("digits", pixels, train, validation, test)


def _mnist_archive(place: Path) -> tuple[np.ndarray, np.ndarray]:
    with open_archive(place / "mnist.npz") as archive:
        return archive["x_train"], archive["x_test"]


def _mnist_files(place: Path) -> tuple[np.ndarray, np.ndarray]:
    names = ("train-images-idx3-ubyte", "t10k-images-idx3-ubyte")
    packed = [place / f"{name}.gz" for name in names]
    train, test = packed if packed[0].is_file() else [place / name for name in names]
    return read_idx(train), read_idx(test)


def _flat(pixels: np.ndarray) -> np.ndarray:
    return pixels.reshape(len(pixels), -1).astype(np.float32)
