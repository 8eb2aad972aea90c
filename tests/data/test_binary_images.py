from __future__ import annotations

import gzip
import struct
from dataclasses import replace

import numpy as np
import pytest

from lmbm_torch.data import SevenSegment
from lmbm_torch.data.corruptions import Flip, Occlude
from lmbm_torch.data.images import (
    BinaryImages,
    alone,
    digits,
    first_images,
    mnist,
    read_idx,
    restoration,
    sampled_mnist,
    seven_segments,
    silhouettes,
)


def images(count=40, side=10, seed=0):
    pixels = np.random.default_rng(seed).integers(0, 2, (count, side, side)).astype(np.uint8)
    rows = np.random.default_rng(seed).permutation(count)
    return BinaryImages("noise", pixels, rows[: count // 2], rows[count // 2 : -5], rows[-5:])


def idx_bytes(array, code):
    return struct.pack(f">HBB{array.ndim}I", 0, code, array.ndim, *array.shape) + array.tobytes()


@pytest.mark.parametrize(("code", "dtype"), [(0x08, "u1"), (0x0B, ">i2"), (0x0D, ">f4"), (0x0E, ">f8")])
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_idx_files_hold_what_was_written(tmp_path, code, dtype, pack):
    array = np.arange(24).reshape(2, 3, 4).astype(dtype)
    (tmp_path / "a").write_bytes(pack(idx_bytes(array, code)))
    read = read_idx(tmp_path / "a")
    assert read.dtype == np.dtype(dtype).newbyteorder("=")
    np.testing.assert_array_equal(read, array)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "unpack"),
        (b"PK\x03\x04", "idx file"),
        (idx_bytes(np.zeros((2, 3), "u1"), 0x08)[:-1], r"shape \(2, 3\), got 5 bytes"),
        (idx_bytes(np.zeros((2, 3), "u1"), 0x08) + b"\0", r"shape \(2, 3\), got 7 bytes"),
        (gzip.compress(bytes(100), mtime=0)[:-9], "a: "),
    ],
)
def test_damaged_idx_files_are_refused_by_name(tmp_path, content, message):
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_idx(tmp_path / "a")
    with pytest.raises(FileNotFoundError):
        read_idx(tmp_path / "b")


@pytest.mark.parametrize("corruption", [Flip(0.2, seed=3), Occlude(4, 1, seed=3)])
def test_an_image_is_corrupted_alike_in_any_company(corruption):
    everything = images()
    rows = np.arange(len(everything.pixels))
    all_at_once = corruption(everything.pixels, rows)
    few = np.array([7, 31, 2])
    np.testing.assert_array_equal(corruption(everything.pixels[few], few), all_at_once[few])
    assert (type(corruption)(seed=4)(everything.pixels, rows) != all_at_once).any()


def test_noise_flips_the_share_that_it_names():
    clean = np.zeros((400, 28, 28), np.uint8)
    changed = Flip(0.2)(clean, np.arange(400))
    assert changed.mean() == pytest.approx(0.2, abs=0.004)
    assert not clean.any()
    assert (changed.mean(0) > 0.1).all()
    assert (Flip(0.0)(clean, np.arange(400)) == clean).all()
    assert (Flip(1.0)(clean, np.arange(400)) != clean).all()


@pytest.mark.parametrize("value", [0, 1])
def test_a_patch_lies_anywhere_inside(value):
    clean = np.full((600, 9, 9), 1 - value, np.uint8)
    covered = Occlude(4, value)(clean, np.arange(600)) == value
    assert (covered.sum((1, 2)) == 16).all()
    corners = {tuple(np.argwhere(each)[0]) for each in covered}
    assert corners == {(top, left) for top in range(6) for left in range(6)}
    assert (Occlude(9, value)(clean, np.arange(600)) == value).all()


def test_corruptions_refuse_what_they_cannot_do():
    with pytest.raises(ValueError, match=r"probability: expected a number from 0 to 1, got 1\.5"):
        Flip(1.5)
    with pytest.raises(ValueError, match="value: expected 0 or 1, got 2"):
        Occlude(3, 2)
    with pytest.raises(ValueError, match=r"size: expected at most .*10.* got 11"):
        Occlude(11)(images().pixels, np.arange(40))


def test_restoration_keeps_the_parts_and_pairs_each_image_with_its_own():
    clean = images()
    data = restoration(clean, Occlude(4))
    for part, rows in (("train", clean.train), ("validation", clean.validation), ("test", clean.test)):
        np.testing.assert_array_equal(
            data.labels[getattr(data, part)], clean.pixels[rows].reshape(len(rows), -1)
        )
    assert ((data.features != data.labels).sum(1) <= 16).all()
    assert data.name == "noise, 4 × 4 occluded"
    smaller = restoration(first_images(clean, 5, 3, 2), Occlude(4))
    np.testing.assert_array_equal(smaller.features[smaller.train], data.features[data.train][:5])


def test_a_smaller_study_takes_the_first_images_of_each_part():
    everything = images()
    fewer = first_images(everything, train=5, test=0)
    np.testing.assert_array_equal(fewer.train, everything.train[:5])
    np.testing.assert_array_equal(fewer.validation, everything.validation)
    assert len(fewer.test) == 0
    assert fewer.pixels is everything.pixels
    with pytest.raises(ValueError, match="test: expected a number of images from 0 to 5, got 6"):
        first_images(everything, 1, 1, 6)
    with pytest.raises(ValueError, match="train: expected a number of images from 0 to 20, got -1"):
        first_images(everything, -1)


def test_digits_become_the_segments_that_show_them():
    drawn = images()
    shown = np.random.default_rng(0).integers(0, 10, len(drawn.pixels))
    data = seven_segments(replace(drawn, digits=shown))
    assert data.label_names == tuple("abcdefg")
    for part in ("train", "validation", "test"):
        rows, given = getattr(data, part), getattr(drawn, part)
        np.testing.assert_array_equal(data.labels[rows], SevenSegment.codes()[shown[given]])
        np.testing.assert_array_equal(data.features[rows], drawn.pixels[given].reshape(len(given), -1))
    with pytest.raises(ValueError, match="images: expected images with known digits, got noise"):
        seven_segments(drawn)


def test_images_are_binary():
    with pytest.raises(ValueError, match="pixels: expected 0 or 1"):
        BinaryImages("grey", np.full((1, 2, 2), 7, np.uint8), *[np.arange(0)] * 3)
    with pytest.raises(ValueError, match=r"pixels: expected shape .*uint8, got \(1, 4\)"):
        BinaryImages("flat", np.zeros((1, 4), np.uint8), *[np.arange(0)] * 3)
    with pytest.raises(ValueError, match=r"digits: expected shape \(40\), got \(39,\)"):
        replace(images(), digits=np.zeros(39, np.int64))
    with pytest.raises(ValueError, match=r"digits: expected numbers from 0 to 9, got \[10\]"):
        replace(images(), digits=np.full(40, 10))


def test_digits_are_there_without_a_folder():
    data = restoration(digits(), Flip(0.1))
    assert repr(digits()) == "<digits: 1000 to train, 297 to validate, 500 to test, 8 × 8 pixels>"
    assert (data.features != data.labels).mean() == pytest.approx(0.1, abs=0.005)
    whole = SevenSegment()
    segments = seven_segments(digits())
    np.testing.assert_array_equal(segments.labels, whole.labels)
    np.testing.assert_array_equal(segments.features, whole.features >= 0.5)


def test_mnist_is_read_from_idx_files_or_an_archive(tmp_path):
    place = tmp_path / "mnist"
    place.mkdir()
    random = np.random.default_rng(0)
    grey = random.integers(0, 256, (12_003, 2, 2)).astype(np.uint8)
    shown = random.integers(0, 10, 12_003).astype(np.uint8)
    parts = {"train": slice(12_000), "t10k": slice(12_000, None)}
    for name, part in parts.items():
        (place / f"{name}-images-idx3-ubyte").write_bytes(idx_bytes(grey[part], 0x08))
    from_idx = mnist(tmp_path)
    np.testing.assert_array_equal(from_idx.pixels, grey > 127)
    assert [len(from_idx.train), len(from_idx.validation), len(from_idx.test)] == [2000, 10_000, 3]
    assert from_idx.digits is None
    (place / "train-labels-idx1-ubyte").write_bytes(idx_bytes(shown[:12_000], 0x08))
    with pytest.raises(FileNotFoundError, match="t10k-labels"):
        mnist(tmp_path)
    (place / "t10k-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx_bytes(shown[12_000:], 0x08)))
    np.testing.assert_array_equal(mnist(tmp_path).digits, shown)
    np.savez(place / "mnist.npz", x_train=grey[:12_000], x_test=grey[12_000:])
    np.testing.assert_array_equal(mnist(tmp_path).validation, from_idx.validation)
    assert mnist(tmp_path).digits is None
    assert (mnist(tmp_path, seed=1).validation != from_idx.validation).any()


def test_pixels_are_drawn_with_the_probability_of_their_grey_value(tmp_path):
    grey = np.array([0, 51, 204, 255], np.uint8)
    images = np.broadcast_to(grey[:, None], (12_000, 4, 1))
    (tmp_path / "mnist").mkdir()
    np.savez(tmp_path / "mnist" / "mnist.npz", x_train=images, x_test=images[:5])
    drawn = sampled_mnist(tmp_path)
    shares = drawn.pixels.mean((0, 2))
    assert shares[[0, 3]].tolist() == [0, 1]
    np.testing.assert_allclose(shares[1:3], [0.2, 0.8], atol=5 * (0.16 / 12_005) ** 0.5)
    for name in ("train", "validation", "test"):
        np.testing.assert_array_equal(getattr(drawn, name), getattr(mnist(tmp_path), name))
    np.testing.assert_array_equal(sampled_mnist(tmp_path).pixels, drawn.pixels)
    assert (sampled_mnist(tmp_path, pixel_seed=1).pixels != drawn.pixels).any()


def test_images_alone_are_labels_without_input():
    clean = images()
    data = alone(clean)
    rows = np.concatenate([clean.train, clean.validation, clean.test])
    np.testing.assert_array_equal(data.labels, clean.pixels[rows].reshape(40, -1))
    assert data.features.shape == (40, 1)
    assert not data.features.any()
    assert [len(data.train), len(data.validation), len(data.test)] == [20, 15, 5]


@pytest.mark.data
def test_real_images_are_as_published(data_folder):
    digits_of_mnist = mnist(data_folder)
    assert [len(digits_of_mnist.train), len(digits_of_mnist.validation)] == [50_000, 10_000]
    assert len(digits_of_mnist.test) == 10_000
    assert digits_of_mnist.pixels.mean() == pytest.approx(0.13, abs=0.01)
    assert digits_of_mnist.digits is not None
    shown = digits_of_mnist.digits[digits_of_mnist.test]
    # As published; a 1 has the least ink.
    assert np.bincount(shown).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    ink = [digits_of_mnist.pixels[digits_of_mnist.test][shown == digit].mean() for digit in range(10)]
    assert np.argmin(ink) == 1
    objects = silhouettes(data_folder)
    assert [len(objects.train), len(objects.validation), len(objects.test)] == [4100, 2264, 2307]
    assert objects.pixels.mean() == pytest.approx(0.54, abs=0.01)
