"""What every energy answers, and the label coding."""

from __future__ import annotations

from itertools import combinations
from typing import Protocol, overload, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from lmbm_torch.shapes import Float, Shaped


@runtime_checkable
class Energy(Protocol):
    """A batch of scoring functions over binary labels."""

    @property
    def batch_size(self) -> int: ...

    @property
    def num_labels(self) -> int: ...

    @property
    def device(self) -> torch.device: ...

    @property
    def dtype(self) -> torch.dtype: ...

    def score(self, labels: Shaped[Tensor, "*samples #batch labels"]) -> Float[Tensor, "*samples _batch"]:
        """Log-potential of each labelling; larger is better, and p(y) ∝ exp(score(y))."""
        ...

    def check_values(self) -> None:
        """Raise ValueError if a stored tensor holds NaN or infinity; called where inference begins."""
        ...


@runtime_checkable
class MarginEnergy(Energy, Protocol):
    """An energy whose labels each have a local margin, so that hinge losses are defined."""

    def local_margins(
        self, labels: Shaped[Tensor, "*samples #batch labels"]
    ) -> Float[Tensor, "*samples _batch labels"]:
        """m_i = s_i z_i: by how much label i agrees with its local field."""
        ...


@overload
def to_spins(labels: Tensor, dtype: torch.dtype | None = None) -> Tensor: ...
@overload
def to_spins(labels: np.ndarray, dtype: np.dtype | type | None = None) -> np.ndarray: ...
def to_spins(labels, dtype=None):
    """s = 2y − 1: {0, 1} labels as {−1, +1} spins; NaN (a missing label) stays NaN.

    The result has ``dtype``, by default the labels' own where that is floating point, else the default one.
    """
    if isinstance(labels, Tensor):
        if dtype is None:
            dtype = labels.dtype if labels.is_floating_point() else torch.get_default_dtype()
        return labels.to(dtype) * 2 - 1
    if dtype is None:
        dtype = labels.dtype if np.issubdtype(labels.dtype, np.floating) else np.float64
    return labels.astype(dtype) * 2 - 1


def cliques_up_to(num_labels: int, degree: int) -> tuple[tuple[int, ...], ...]:
    """Every set of 3 to ``degree`` labels, the smaller ones first; none for degrees 1 and 2."""
    sizes = range(3, min(degree, num_labels) + 1)
    return tuple(clique for size in sizes for clique in combinations(range(num_labels), size))
