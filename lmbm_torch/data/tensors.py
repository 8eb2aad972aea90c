"""From the arrays of a data set to tensors: dense stays dense, CSR stays CSR."""

from __future__ import annotations

import warnings

import numpy as np
import torch
from scipy.sparse import csr_array, issparse
from torch import Tensor

from lmbm_torch.data.features import Features
from lmbm_torch.shapes import Float, Int


def to_tensor(features: Features) -> Float[Tensor, "instances features"]:
    """A tensor of the same numbers and dtype, in CSR layout for a CSR array; shares memory where it can."""
    if not issparse(features):
        return _from_numpy(features)
    parts = (features.indptr, features.indices, features.data)
    crow_indices, col_indices, values = map(_from_numpy, parts)
    return csr_tensor(crow_indices, col_indices, values, features.shape)


def to_features(rows: Float[Tensor, "instances features"]) -> Features:
    """The inverse of :func:`to_tensor`."""
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
    """A CSR tensor of parts known to be valid, without torch's announcements.

    They say that the layout is in beta, and (torch 2.11) that nothing is checked.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
        warnings.filterwarnings("ignore", message="Sparse invariant checks are implicitly disabled")
        return torch.sparse_csr_tensor(
            crow_indices, col_indices, values, size=shape, check_invariants=False, device=values.device
        )


def _from_numpy(array: np.ndarray) -> Tensor:
    # torch cannot protect a read-only array from writing, so such a one is copied.
    return torch.from_numpy(np.require(array, requirements=["C", "W"]))
