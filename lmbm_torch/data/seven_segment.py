"""Handwritten digits and the lit segments of a seven-segment display."""

from __future__ import annotations

from importlib import resources
from typing import Any

import numpy as np

from lmbm_torch.data.dataset import MultilabelData
from lmbm_torch.data.features import numbered
from lmbm_torch.extras import naming_extras
from lmbm_torch.shapes import Float, Int

SEGMENTS = ("a", "b", "c", "d", "e", "f", "g")
"""Names of the segments top, top right, bottom right, bottom, bottom left, top left, middle."""

_LIT = ("abcdef", "bc", "abdeg", "abcdg", "bcfg", "acdfg", "acdefg", "abc", "abcdefg", "abcdfg")


def bundled_digits() -> tuple[Float[np.ndarray, "1797 64"], Int[np.ndarray, " 1797"]]:
    """Return grey values 0 … 16 of 8 × 8 pixels, row by row, and the digit in each image."""
    with naming_extras():
        from sklearn.datasets import load_digits

    # The result is two arrays; type checkers misread scikit-learn's types.
    bundled: Any = load_digits(return_X_y=True)
    return bundled


class SevenSegment(MultilabelData):
    """scikit-learn's 1,797 bundled images of digits with seven labels each; 10 of 128 label sets occur.

    Features are the 8 × 8 pixels in [0, 1], float32. Half of the images are for training, half for testing.
    The split, stratified by digit, is fixed in a file of this package.

    Attributes:
        digits: ``(instances,)``, the digit in each image.

    Examples:
        >>> from lmbm_torch.data import SevenSegment
        >>> data = SevenSegment()
        >>> len(data.train), data.label_names
        (898, ('a', 'b', 'c', 'd', 'e', 'f', 'g'))
    """

    digits: Int[np.ndarray, " instances"]

    def __init__(self) -> None:
        images, digits = bundled_digits()
        file = resources.files("lmbm_torch.data").joinpath("seven_segment_train.txt")
        _, *lines = file.read_text(encoding="utf-8").splitlines()
        train = np.array([int(row) for line in lines for row in line.split()])
        super().__init__(
            name="seven_segment",
            features=(images / 16).astype(np.float32),
            labels=self.codes()[digits],
            label_names=SEGMENTS,
            feature_names=numbered("pixel", images.shape[1]),
            train=train,
            test=np.setdiff1d(np.arange(len(digits)), train),
        )
        object.__setattr__(self, "digits", digits)

    @staticmethod
    def codes() -> Float[np.ndarray, "digits segments"]:
        """Return for each digit which of the segments a … g are lit, float32."""
        return np.array([[segment in lit for segment in SEGMENTS] for lit in _LIT], dtype=np.float32)
