"""Arrays begin where registers do, and no two borrowers have the same memory."""

from __future__ import annotations

import numpy as np
import pytest

from lmbm_torch.kernels.matrix_bp.compiled.state import LINE, borrowed, empty


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.uint8])
@pytest.mark.parametrize("shape", [(1,), (7, 33), (2, 3, 64)])
def test_arrays_begin_a_line(shape, dtype):
    for _ in range(5):
        for array in (empty(shape, dtype), *_borrow(shape, dtype)):
            assert (array.shape, array.dtype) == (shape, dtype)
            assert array.ctypes.data % LINE == 0
            assert array.flags.c_contiguous


def _borrow(shape, dtype):
    with borrowed(shape, dtype) as array:
        yield array


def test_memory_is_lent_to_one_at_a_time_and_again():
    with borrowed((10, 300), np.float32) as one, borrowed((10, 300), np.float32) as other:
        assert not np.shares_memory(one, other)
    with borrowed((3000,), np.float32) as again, borrowed((1500,), np.float64) as more:
        assert not np.shares_memory(again, more)
        assert np.shares_memory(again, one) or np.shares_memory(again, other)


def test_memory_comes_back_after_an_exception():
    with pytest.raises(KeyError), borrowed((70_000,), np.float32) as lost:
        raise KeyError
    with borrowed((70_000,), np.float32) as found:
        assert np.shares_memory(found, lost)


def test_much_memory_is_not_kept():
    with borrowed((2**21,), np.float32) as large:
        assert large.nbytes == 2**23
    with borrowed((2**21,), np.float32) as anew:
        assert not np.shares_memory(large, anew)
