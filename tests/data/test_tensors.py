from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array, random_array

from lmbm_torch.data.tensors import to_features, to_tensor


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_sparse_arrays_stay_sparse_both_ways(dtype):
    sparse = random_array((5, 7), density=0.3, format="csr", dtype=dtype, rng=np.random.default_rng(0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tensor = to_tensor(sparse)
    assert tensor.layout == torch.sparse_csr
    np.testing.assert_array_equal(tensor.to_dense(), sparse.toarray())
    back = to_features(tensor)
    assert isinstance(back, csr_array)
    assert back.dtype == dtype
    np.testing.assert_array_equal(back.toarray(), sparse.toarray())
    other = torch.randn(7, 2, dtype=tensor.dtype, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(tensor @ other, tensor.to_dense() @ other)


def test_dense_arrays_stay_dense_both_ways():
    dense = np.arange(6.0).reshape(2, 3)
    assert np.shares_memory(to_features(to_tensor(dense)), dense)
    np.testing.assert_array_equal(to_tensor(dense.T), dense.T)


def test_read_only_arrays_are_copied():
    dense = np.arange(6.0).reshape(2, 3)
    dense.flags.writeable = False
    to_tensor(dense)[0, 0] = 9
    assert dense[0, 0] == 0
