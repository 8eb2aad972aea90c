"""Kernel functions k(x, x') of dense features, for matrices of values on any device.

Each takes rows of two sets of features and returns the values of all pairs, ``(first, second)``.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lmbm_torch.shapes import Float


def linear(
    first: Float[Tensor, "first features"], second: Float[Tensor, "second features"]
) -> Float[Tensor, "first second"]:
    """⟨x, x'⟩."""
    return first @ second.mT


def polynomial(
    first: Float[Tensor, "first features"],
    second: Float[Tensor, "second features"],
    gamma: float,
    degree: float,
    coef0: float,
) -> Float[Tensor, "first second"]:
    """(gamma ⟨x, x'⟩ + coef0)^degree."""
    return (gamma * (first @ second.mT) + coef0).pow(degree)


def rbf(
    first: Float[Tensor, "first features"],
    second: Float[Tensor, "second features"],
    gamma: float,
    square_norms: Float[Tensor, " second"] | None = None,
) -> Float[Tensor, "first second"]:
    """exp(−gamma ‖x − x'‖²), or 0 where that is below the dtype's normal numbers; gamma = 1/(2σ²).

    Args:
        square_norms: ‖x'‖², where they are known.
    """
    if square_norms is None:
        square_norms = second.square().sum(1)
    square = torch.addmm(square_norms, first, second.mT, beta=-0.5).mul_(2)
    square -= first.square().sum(1)[:, None]
    # Round-off can leave a distance below zero. Where values underflow their exponential takes ten times as
    # long, and every product with what is left of them too; powers of two take a quarter of powers of e.
    lowest = math.log2(torch.finfo(square.dtype).tiny) + 2
    values = square.mul_(gamma / math.log(2)).clamp_(lowest, 0).exp2_()
    return torch.threshold_(values, 2 ** (lowest + 1), 0.0)
