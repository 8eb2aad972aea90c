"""Kernel functions k(x, x') of dense features, for matrices of values on any device.

Each takes rows of two sets of features and returns the values of all pairs, ``(first, second)``.
"""

from __future__ import annotations

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
    first: Float[Tensor, "first features"], second: Float[Tensor, "second features"], gamma: float
) -> Float[Tensor, "first second"]:
    """exp(−gamma ‖x − x'‖²); gamma = 1/(2σ²) for a bandwidth σ."""
    square = torch.addmm(second.square().sum(1), first, second.mT, beta=-0.5).mul_(2)
    square -= first.square().sum(1)[:, None]
    # Round-off can leave a distance below zero.
    return square.clamp_(max=0).mul_(gamma).exp_()
