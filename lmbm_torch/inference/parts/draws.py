"""Random units."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["draw"]


def draw(probabilities: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """{0, 1} in the probabilities' dtype, each 1 with its probability.

    Uniform numbers are drawn and compared: on a CPU torch.bernoulli takes five times as long, longer than
    the matrix product that the probabilities come from.
    """
    uniform = torch.rand(
        probabilities.shape, generator=generator, dtype=probabilities.dtype, device=probabilities.device
    )
    return uniform.lt_(probabilities)
