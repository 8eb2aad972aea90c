"""Features of image files in a column of paths: pixels, learned convolutions and pretrained models."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from scipy.sparse import csc_array

from lmbm_torch.checks import is_missing
from lmbm_torch.data.features import Features
from lmbm_torch.data.tables.columns import Table, as_texts
from lmbm_torch.data.tables.embedding_cache import EmbeddingCache, platform_folder
from lmbm_torch.data.tables.names import SHOWN
from lmbm_torch.data.tables.pretrained import IMAGE_LIBRARIES, PretrainedModel, parse, picture, pretrained
from lmbm_torch.data.tables.texts import EmbeddedColumn
from lmbm_torch.extras import naming_extras
from lmbm_torch.files import reading
from lmbm_torch.persistence.stored import Stored
from lmbm_torch.shapes import Float

OWN_ENCODERS = ("small_cnn", "pixels")
# Largest number of images in memory at the same time.
PART = 256
# Side of the patches in pixels, and number of filters, of the small convolutional encoder.
SIDE, FILTERS = 6, 128
# Largest numbers of patches, and of images with these patches, from which filters are learned.
PATCHES, IMAGES = 50_000, 5000
# Constants added to variances before a division: of the pixels of a patch, and of directions in whitening
# (Coates, Lee and Ng 2011, converted from pixels up to 255 to pixels up to 1).
_CONTRAST, _WHITENING = 10 / 255**2, 0.1


@dataclass(frozen=True)
class Pixels(Stored):
    """The pixels of images, resized to a common size: red, green and blue from 0 to 1, channel by channel.

    Args:
        size: height and width.
    """

    size: int
    title: ClassVar[str] = "pixel"

    @property
    def num_features(self) -> int:
        return 3 * self.size**2

    def embed(self, contents: list[bytes]) -> Float[np.ndarray, "contents features"]:
        """Return the pixels of image files, float32."""
        images = [np.asarray(picture(content).resize((self.size, self.size))) for content in contents]
        return np.stack(images).transpose(0, 3, 1, 2).reshape(len(images), -1).astype(np.float32) / 255


@dataclass(frozen=True, eq=False)
class Convolution(Stored):
    """A small convolutional encoder with filters learned from patches of images, without labels.

    Patches are normalised in contrast and whitened, and the filters are the centres of clusters of patches.
    The response of a filter to a patch is max(0, mean distance to all centres − distance to this centre).
    Responses are summed over each quarter of an image (Coates, Lee and Ng 2011).

    Args:
        size: height and width to which images are resized, at least ``SIDE``.
        mean: (patch,), mean of the normalised patches.
        whitening: (patch, patch).
        centres: (filters, patch).
    """

    size: int
    mean: np.ndarray
    whitening: np.ndarray
    centres: np.ndarray
    title: ClassVar[str] = "small_cnn"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Convolution) and all(
            np.array_equal(value, other.stored_parts()[name]) for name, value in self.stored_parts().items()
        )

    @property
    def num_features(self) -> int:
        return 4 * len(self.centres)

    def embed(self, contents: list[bytes]) -> Float[np.ndarray, "contents features"]:
        """Return the sums of the filters' responses over the quarters of each image file, float32."""
        return np.stack([self._quarters(each) for each in Pixels(self.size).embed(contents)])

    def _quarters(self, pixels: Float[np.ndarray, " pixels"]) -> Float[np.ndarray, " features"]:
        rows = (_patches(pixels, self.size) - self.mean) @ self.whitening
        squares = (rows**2).sum(1, keepdims=True) - 2 * rows @ self.centres.T + (self.centres**2).sum(1)
        distances = np.sqrt(squares.clip(0))
        answers = (distances.mean(1, keepdims=True) - distances).clip(0)
        side = self.size - SIDE + 1
        half = -(-side // 2)
        square = answers.reshape(side, side, -1)
        quarters = [square[a : a + half, b : b + half].sum((0, 1)) for a in (0, half) for b in (0, half)]
        return np.concatenate(quarters).astype(np.float32)


def _patches(pixels: Float[np.ndarray, " pixels"], size: int) -> Float[np.ndarray, "patches patch"]:
    """Return all patches of an image, normalised in contrast."""
    windows = np.lib.stride_tricks.sliding_window_view(pixels.reshape(3, size, size), (SIDE, SIDE), (1, 2))
    found = windows.transpose(1, 2, 0, 3, 4).reshape(-1, 3 * SIDE**2)
    return (found - found.mean(1, keepdims=True)) / np.sqrt(found.var(1, keepdims=True) + _CONTRAST)


def learn_convolution(images: Float[np.ndarray, "images pixels"], size: int) -> Convolution:
    """Return an encoder with filters from random patches of images, with a fixed seed.

    Args:
        images: features of :class:`Pixels`.
    """
    with naming_extras():
        from sklearn.cluster import MiniBatchKMeans

    random = np.random.default_rng(0)
    each = max(1, PATCHES // len(images))
    drawn = [random.permutation(_patches(image, size))[:each] for image in images]
    patches = np.concatenate(drawn).astype(np.float64)
    mean = patches.mean(0)
    values, vectors = np.linalg.eigh(np.cov(patches - mean, rowvar=False))
    whitening = vectors / np.sqrt(values.clip(0) + _WHITENING) @ vectors.T
    count = min(FILTERS, len(patches))
    # Type checkers misread the defaults of scikit-learn.
    kind: Any = MiniBatchKMeans
    clusters = kind(count, n_init=1, max_iter=10, batch_size=4096, random_state=0)
    centres = clusters.fit((patches - mean) @ whitening).cluster_centers_
    return Convolution(size, *(array.astype(np.float32) for array in (mean, whitening, centres)))


@dataclass(frozen=True)
class ImageColumn(EmbeddedColumn):
    """A column of paths of images, encoded by :class:`Pixels`, :class:`Convolution` or a pretrained model.

    If a path is missing, all features are 0. For arguments see :class:`EmbeddedColumn`.
    """

    kind: ClassVar[str] = "images"

    def values(self, table: Table) -> np.ndarray:
        """Return the paths; relative paths in a table from a file start at the folder of the file."""
        return paths_of(table, self.name)

    def features(self, values: np.ndarray, unknown: list[str], sparse: bool) -> Features:
        """Return the features of images, see :class:`NamedColumn`.

        Raises:
            ValueError: a path leads to no file, or a file holds no image.
        """
        found = np.zeros((len(values), self.encoder.num_features))
        encoder = self.encoder
        if isinstance(encoder, PretrainedModel):
            encoder = EmbeddingCache(encoder, self.cache)
        for rows, images in _embedded(self.name, values, encoder):
            found[rows] = images
        return csc_array(found) if sparse else found


def check_image_encoder(encoder: str, size: int) -> None:
    """Raise ValueError unless the encoder is of :data:`OWN_ENCODERS` or names a pretrained model."""
    if encoder not in OWN_ENCODERS:
        parse(encoder, IMAGE_LIBRARIES, OWN_ENCODERS)
    if not isinstance(size, int) or size < SIDE:
        raise ValueError(f"image_size: expected a whole number of at least {SIDE}, got {size!r}")


def fit_image_column(
    table: Table, name: str, encoder: str = "small_cnn", size: int = 32, cache: str | None = None
) -> ImageColumn:
    """Return the column of images with a fitted encoder.

    Args:
        encoder: ``"small_cnn"``, ``"pixels"`` or ``"timm:NAME"``.
        size: height and width for the encoders of :data:`OWN_ENCODERS`.
        cache: folder that keeps embeddings; None for the platform's folder of caches.

    Raises:
        ValueError: there is no image, a path leads to no file, or :func:`check_image_encoder` raises it.
    """
    check_image_encoder(encoder, size)
    values = paths_of(table, name)
    if encoder not in OWN_ENCODERS:
        return ImageColumn(name, pretrained(encoder, IMAGE_LIBRARIES), str(cache or platform_folder()))
    pixels = Pixels(size)
    if encoder == "pixels":
        return ImageColumn(name, pixels)
    known = values[~is_missing(values)]
    known = np.random.default_rng(0).permutation(known)[:IMAGES]
    parts = [images for _, images in _embedded(name, known, pixels)]
    if not parts:
        raise ValueError(f"column {name!r}: expected paths of images, got only missing values")
    return ImageColumn(name, learn_convolution(np.concatenate(parts), size))


def paths_of(table: Table, name: str) -> np.ndarray:
    """Return a column of paths; relative paths start at the folder of the table."""
    folder = Path() if table.folder is None else Path(table.folder)
    texts = as_texts(table.columns[name])
    return np.array([None if text is None else str(folder / text) for text in texts], dtype=object)


def _embedded(name: str, values: np.ndarray, encoder: Any) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield row numbers of images and the features of the images, part by part.

    Raises:
        ValueError: a path leads to no file, or a file holds no image.
    """
    known = np.flatnonzero(~is_missing(values))
    if absent := [path for path in values[known].tolist() if not Path(path).is_file()]:
        few = absent[:SHOWN]
        raise ValueError(
            f"column {name!r}: expected paths of images, got {len(absent)} without a file, such as {few}"
        )
    for first in range(0, len(known), PART):
        rows = known[first : first + PART]
        contents = {path: Path(path).read_bytes() for path in values[rows].tolist()}
        try:
            yield rows, encoder.embed([contents[path] for path in values[rows].tolist()])
        except ValueError:
            for path, content in contents.items():
                with reading(path, argument=f"column {name!r}"):
                    picture(content)
            raise
