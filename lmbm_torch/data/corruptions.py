"""Corruptions of clean binary images, for problems of image restoration.

A corruption is called with images and row numbers in the data set. The effect on an image depends only on the
seed and on the row number. Thus the effect is equal in every run and for every selection of images.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from lmbm_torch.checks import check_count
from lmbm_torch.shapes import Int, Shaped

Image = Shaped[np.ndarray, "height width"]
Images = Shaped[np.ndarray, "images height width"]


class _Corruption(ABC):
    """A corruption, which changes an image in place with a separate random generator for each image."""

    seed: int

    def __call__(self, pixels: Images, rows: Int[np.ndarray, " images"]) -> Images:
        corrupted = pixels.copy()
        for image, row in zip(corrupted, rows.tolist(), strict=True):
            self._change(image, np.random.default_rng((self.seed, row)))
        return corrupted

    @abstractmethod
    def _change(self, image: Image, generator: np.random.Generator) -> None: ...


@dataclass(frozen=True)
class Flip(_Corruption):
    """Noise: each pixel is flipped with the same probability, independently of the other pixels.

    Args:
        probability: the probability of a flip; 0.1 and 0.2 in belief_propagation_in_crbms_2017.
        seed: seed of the noise.

    Raises:
        ValueError: ``probability`` is not in [0, 1].
    """

    probability: float = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.probability <= 1:
            raise ValueError(f"probability: expected a number from 0 to 1, got {self.probability}")

    def __str__(self) -> str:
        return f"{self.probability:.0%} flipped"

    def _change(self, image: Image, generator: np.random.Generator) -> None:
        image ^= (generator.random(image.shape, dtype=np.float32) < self.probability).astype(image.dtype)


@dataclass(frozen=True)
class Occlude(_Corruption):
    """Occlusion: a square patch at a random place of the image is covered with one value.

    Args:
        size: length of the sides of the patch; 8 and 12 in belief_propagation_in_crbms_2017.
        value: 0 or 1; the background is 0 in MNIST and 1 in the Caltech silhouettes.
        seed: seed of the places.

    Raises:
        ValueError: ``size`` is below 1 or, in a call, above the size of images; or ``value`` is not 0 or 1.
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

    def _change(self, image: Image, generator: np.random.Generator) -> None:
        if self.size > min(image.shape):
            raise ValueError(f"size: expected at most the size {image.shape} of images, got {self.size}")
        top, left = generator.integers(np.array(image.shape) - self.size + 1)
        image[top : top + self.size, left : left + self.size] = self.value
