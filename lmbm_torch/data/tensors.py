"""Conversion of arrays to tensors: dense arrays stay dense, CSR arrays stay CSR."""

from __future__ import annotations

import warnings

import numpy as np
import torch
from scipy.sparse import csr_array, issparse
from torch import Tensor

from lmbm_torch.data.features import Features
from lmbm_torch.shapes import Float, Int


def to_tensor(features: Features) -> Float[Tensor, "instances features"]:
    """Return a tensor of the same numbers and dtype, CSR for a CSR array; memory is shared if possible."""
    if not issparse(features):
        return _from_numpy(features)
    parts = (features.indptr, features.indices, features.data)
    crow_indices, col_indices, values = map(_from_numpy, parts)
    return csr_tensor(crow_indices, col_indices, values, features.shape)


def to_features(rows: Float[Tensor, "instances features"]) -> Features:
    """Return the array of a tensor: the inverse of :func:`to_tensor`."""
    if rows.layout != torch.sparse_csr:
        return rows.numpy()
    parts = (rows.values().numpy(), rows.col_indices().numpy(), rows.crow_indices().numpy())
    return csr_array(parts, shape=tuple(rows.shape))


def csr_tensor(
    crow_indices: Int[Tensor, " rows_and_one"],
    col_indices: Int[Tensor, " entries"],
    values: Float[Tensor, " entries"],
    shape: tuple[int, ...],
) -> Float[Tensor, "instances features"]:
    """Return a CSR tensor of valid parts, without two warnings of torch.

    The warnings say that the layout is in beta and, in torch 2.11, that the parts are not checked.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
        warnings.filterwarnings("ignore", message="Sparse invariant checks are implicitly disabled")
        return torch.sparse_csr_tensor(
            crow_indices, col_indices, values, size=shape, check_invariants=False, device=values.device
        )


def _from_numpy(array: np.ndarray) -> Tensor:
    # Copy read-only arrays, because torch could write into them.
    return torch.from_numpy(np.require(array, requirements=["C", "W"]))
