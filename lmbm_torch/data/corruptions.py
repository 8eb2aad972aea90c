"""Corruptions of clean binary images, for problems of restoring them.

A corruption is called with images and their rows in the data set. Its effect on an image depends on its seed
and on the image's row alone: the same in every run, and in every selection of images.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from lmbm_torch.checks import check_count
from lmbm_torch.shapes import Int, Shaped


@dataclass(frozen=True)
class Flip:
    """Noise: each pixel is flipped with the same probability, independently of all others.

    Args:
        probability: 0.1 and 0.2 in belief_propagation_in_crbms_2017.
        seed: of the noise.

    Raises:
        ValueError: a probability outside [0, 1].
    """

    probability: float = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.probability <= 1:
            raise ValueError(f"probability: expected 0 to 1, got {self.probability}")

    def __str__(self) -> str:
        return f"{self.probability:.0%} flipped"

    def __call__(
        self, pixels: Shaped[np.ndarray, "images height width"], rows: Int[np.ndarray, " images"]
    ) -> Shaped[np.ndarray, "images height width"]:
        corrupted = pixels.copy()
        for image, generator in zip(corrupted, _generators(self.seed, rows), strict=True):
            image ^= (generator.random(image.shape, dtype=np.float32) < self.probability).astype(image.dtype)
        return corrupted


@dataclass(frozen=True)
class Occlude:
    """A square patch, anywhere inside the image, is covered with one value.

    Args:
        size: of the patch's sides; 8 and 12 in belief_propagation_in_crbms_2017.
        value: 0 or 1, which hides it: MNIST's background is 0, that of the Caltech silhouettes 1.
        seed: of the places.

    Raises:
        ValueError: a size below one, or when called, one above the images'; another value.
    """

    size: int = 8
    value: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        check_count("size", self.size)
        if self.value not in (0, 1):
            raise ValueError(f"value: expected 0 or 1, got {self.value}")

    def __str__(self) -> str:
        return f"{self.size} × {self.size} occluded"

    def __call__(
        self, pixels: Shaped[np.ndarray, "images height width"], rows: Int[np.ndarray, " images"]
    ) -> Shaped[np.ndarray, "images height width"]:
        if self.size > min(pixels.shape[1:]):
            raise ValueError(f"size: expected at most the images' {pixels.shape[1:]}, got {self.size}")
        corrupted = pixels.copy()
        places = np.array(pixels.shape[1:]) - self.size + 1
        for image, generator in zip(corrupted, _generators(self.seed, rows), strict=True):
            top, left = generator.integers(places)
            image[top : top + self.size, left : left + self.size] = self.value
        return corrupted


def _generators(seed: int, rows: np.ndarray) -> Iterator[np.random.Generator]:
    """One for each image."""
    for row in rows.tolist():
        yield np.random.default_rng((seed, row))
