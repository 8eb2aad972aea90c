"""Scaling of features, fitted once to a training part and then applied to raw rows.

scikit-learn fits the scaling. The result is a record of tensors, which a checkpoint can hold and which scales
rows without scikit-learn.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from scipy.sparse import issparse
from torch import Tensor

from lmbm_torch.checks import check_finite, check_shape
from lmbm_torch.data.features import Features
from lmbm_torch.data.tensors import csr_tensor
from lmbm_torch.extras import naming_extras
from lmbm_torch.persistence.stored import Stored
from lmbm_torch.shapes import Float


@dataclass(frozen=True)
class Scaling(Stored):
    """The map x ↦ (x − mean) / scale; with ``unit_rows`` each row is then divided by its Euclidean norm.

    Args:
        mean, scale: float64, one entry per feature; ``scale`` above zero.
        unit_rows: whether rows are divided by the norms; a row of zeros stays unchanged.

    Raises:
        ValueError: shapes differ, a mean is infinite or NaN, or a scale is not above zero.
    """

    mean: Float[Tensor, " features"]
    scale: Float[Tensor, " features"]
    unit_rows: bool

    def __post_init__(self) -> None:
        check_shape("mean", self.mean, None)
        check_shape("scale", self.scale, *self.mean.shape)
        check_finite("mean", self.mean)
        check_finite("scale", self.scale)
        if not bool((self.scale > 0).all()):
            raise ValueError(f"scale: expected entries above 0, got {self.scale.min()}")

    @cached_property
    def _changes_nothing(self) -> bool:
        return not self.unit_rows and bool((self.mean == 0).all()) and bool((self.scale == 1).all())

    def transform(self, rows: Float[Tensor, "batch features"]) -> Float[Tensor, "batch features"]:
        """Scale raw rows, dense or CSR, on the device of ``mean`` and ``scale``.

        The result, computed in float64, has the dtype of ``rows``; unscaled, it is ``rows`` itself.

        Raises:
            ValueError: the number of features differs; or rows are CSR although means are not zero, and the
                result would be dense.
        """
        check_shape("rows", rows, rows.shape[0], len(self.mean))
        if not self.unit_rows and bool((self.mean == 0).all()) and bool((self.scale == 1).all()):
            return rows
        if rows.layout == torch.sparse_csr:
            return self._transform_csr(rows)
        scaled = (rows - self.mean) / self.scale
        if self.unit_rows:
            scaled = scaled / _or_one(scaled.norm(dim=1, keepdim=True))
        return scaled.to(rows.dtype)

    def _transform_csr(self, rows: Tensor) -> Tensor:
        if bool((self.mean != 0).any()):
            raise ValueError(
                "rows: expected dense rows, because subtracting the mean makes CSR rows dense, got CSR"
            )
        values = rows.values() / self.scale[rows.col_indices().long()]
        if self.unit_rows:
            counts = rows.crow_indices().diff()
            row_of = torch.repeat_interleave(counts)
            squares = torch.zeros(len(counts), dtype=values.dtype, device=rows.device)
            norms = squares.index_add(0, row_of, values.square()).sqrt()
            values = values / _or_one(norms)[row_of]
        return csr_tensor(rows.crow_indices(), rows.col_indices(), values.to(rows.dtype), rows.shape)

    def agrees(self, other: Scaling) -> bool:
        """Return whether two scalings are equal up to rounding, which may differ between computers."""
        if self.unit_rows != other.unit_rows or self.mean.shape != other.mean.shape:
            return False
        shift = (other.mean.to(self.mean) - self.mean) / self.scale
        stretch = other.scale.to(self.scale) / self.scale - 1
        return bool((shift.abs() < 1e-9).all() and (stretch.abs() < 1e-9).all())


def standardise(features: Features) -> Scaling:
    """Return a scaling to zero mean and unit variance of every feature; constants are only centred.

    Raises:
        ValueError: features are CSR, which would become dense.
    """
    with naming_extras():
        from sklearn.preprocessing import StandardScaler

    if issparse(features):
        raise ValueError(
            "features: expected dense features to standardise, got CSR; unit_norm keeps them sparse"
        )
    scaler = StandardScaler().fit(features)
    mean, scale = (
        torch.tensor(fitted, dtype=torch.float64, device="cpu") for fitted in (scaler.mean_, scaler.scale_)
    )
    return Scaling(mean, scale, unit_rows=False)


def usual(features: Features) -> Scaling:
    """Return the scaling that standardises dense features, then divides each row by its Euclidean norm.

    If features are CSR, each column is divided by the largest magnitude instead: zeros stay zeros.
    """
    if not issparse(features):
        return replace(standardise(features), unit_rows=True)
    largest = torch.from_numpy(abs(features).max(axis=0).toarray().ravel().astype("float64"))
    return Scaling(torch.zeros_like(largest), _or_one(largest), unit_rows=True)


def unit_norm(features: Features) -> Scaling:
    """Return the scaling that divides each row by its Euclidean norm; CSR features stay sparse."""
    return _neutral(features, unit_rows=True)


def unscaled(features: Features) -> Scaling:
    """Return the scaling that changes nothing."""
    return _neutral(features, unit_rows=False)


def _neutral(features: Features, unit_rows: bool) -> Scaling:
    mean = torch.zeros(features.shape[1], dtype=torch.float64, device="cpu")
    return Scaling(mean, torch.ones_like(mean), unit_rows)


def _or_one(norms: Tensor) -> Tensor:
    return torch.where(norms == 0, 1, norms)
