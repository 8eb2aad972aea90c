from __future__ import annotations

import numpy as np
from sklearn.datasets import load_digits

from lmbm_torch.data import SevenSegment
from lmbm_torch.data.seven_segment import SEGMENTS


def test_each_digit_has_its_own_segments():
    codes = SevenSegment.codes()
    assert codes.shape == (10, 7)
    assert len(np.unique(codes, axis=0)) == 10
    lit = ["".join(np.array(SEGMENTS)[code == 1]) for code in codes]
    # A standard decoder's bits, with a as the lowest.
    bits = [0x3F, 0x06, 0x5B, 0x4F, 0x66, 0x6D, 0x7D, 0x07, 0x7F, 0x6F]
    assert lit == ["".join(name for k, name in enumerate(SEGMENTS) if byte >> k & 1) for byte in bits]


def test_images_and_labels_are_those_of_the_digits():
    data = SevenSegment()
    images, digits = load_digits(return_X_y=True)
    np.testing.assert_array_equal(data.features * 16, images)
    np.testing.assert_array_equal(data.digits, digits)
    np.testing.assert_array_equal(data.labels, SevenSegment.codes()[digits])
    assert data.label_names == ("a", "b", "c", "d", "e", "f", "g")
    assert data.features.dtype == np.float32


def test_halves_are_fixed_disjoint_and_stratified():
    data = SevenSegment()
    assert (len(data.train), len(data.test)) == (898, 899)
    assert len(np.union1d(data.train, data.test)) == 1797
    counts = [np.bincount(data.digits[rows], minlength=10) for rows in (data.train, data.test)]
    assert np.abs(counts[0] - counts[1]).max() <= 1
    assert data.sha256() == "49c2205e87ed5a057ec6e67a6b177623694b3dbf26364d39a70d49aad04ec276"


def test_another_split_keeps_images_and_labels():
    data = SevenSegment()
    other = data.with_split(data.test, data.train)
    np.testing.assert_array_equal(other.train_labels, data.test_labels)
