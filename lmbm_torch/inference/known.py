"""Units whose values are given: what inference is told, and never infers."""

from __future__ import annotations

import torch
from torch import Tensor

from lmbm_torch.shapes import Shaped

__all__ = ["clamp"]


def clamp(
    values: Shaped[Tensor, "*samples units"], known: Shaped[Tensor, "#batch units"] | None
) -> Shaped[Tensor, "*_ units"]:
    """``values``, or in their place what is ``known``: {0, 1, NaN}, NaN where nothing is."""
    if known is None:
        return values
    return torch.where(known.isnan(), values, known.nan_to_num().to(values.dtype))
