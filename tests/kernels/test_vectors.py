"""Vectors in compiled code count as numpy does."""

from __future__ import annotations

import numpy as np
import pytest
from numba import TypingError, njit

from lmbm_torch.kernels.matrix_bp.compiled.vectors import (
    any_above,
    broadcast,
    exponents,
    greatest,
    lanes,
    least,
    load,
    mantissas,
    ones,
    pointer,
    product_of_lanes,
    store,
    sum_of_lanes,
)


@njit
def combine(one, other, out):
    a, b, c = pointer(one), pointer(other), pointer(out)
    for i in range(np.uint64(0), np.uint64(len(one)), lanes(a)):
        x, y = load(a, i), load(b, i)
        x = (x + y * broadcast(other[0]) - ones(a)) / y
        x *= greatest(x, y)
        x += least(x, y)
        store(c, i, x)


@njit
def split(values, parts):
    a, b = pointer(values), pointer(parts)
    x = load(a, np.uint64(0))
    store(b, np.uint64(0), mantissas(x))
    return sum_of_lanes(exponents(x)), product_of_lanes(mantissas(x)), lanes(a)


@njit
def exceeds(one, other):
    return any_above(load(pointer(one), np.uint64(0)), load(pointer(other), np.uint64(0)))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_one_lane_above_or_nan_is_enough(dtype):
    one, other = np.ones((2, 16), dtype)
    assert not exceeds(one, other)
    for value in (1.5, np.nan):
        one[7] = value
        assert exceeds(one, other)


@pytest.mark.parametrize(("dtype", "count"), [(np.float32, 16), (np.float64, 8)])
def test_vectors_count_as_numpy_does(dtype, count):
    generator = np.random.default_rng(0)
    one, other = generator.uniform(0.5, 4, (2, 3 * count)).astype(dtype)
    out = np.empty_like(one)
    combine(one, other, out)
    expected = (one + other * other[0] - 1) / other
    expected *= np.maximum(expected, other)
    expected += np.minimum(expected, other)
    np.testing.assert_allclose(out, expected, rtol=20 * np.finfo(dtype).eps)

    values = np.exp(generator.uniform(-60, 60, count)).astype(dtype)
    parts = np.empty_like(values)
    power, product, width = split(values, parts)
    mantissa, exponent = np.frexp(values)
    np.testing.assert_array_equal(parts, 2 * mantissa)
    assert power == (exponent - 1).sum()
    assert product == pytest.approx(np.prod(2 * mantissa.astype(float)), rel=20 * float(np.finfo(dtype).eps))
    assert width == count


def test_what_is_not_contiguous_has_no_pointer():
    with pytest.raises(TypingError, match="pointer"):
        njit(lambda array: lanes(pointer(array)))(np.ones((4, 4))[:, 1])
