"""Gradients that are right, but cannot be differentiated again. This module is internal.

Gradients at a fixed point of inference hold messages or an active set constant. Such gradients are right, but
differentiating them would give wrong second derivatives.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from lmbm_torch.checks import check_outside_transforms
from lmbm_torch.energies.base import BaseEnergy

__all__ = []

Kind = TypeVar("Kind", bound=BaseEnergy)


def first_order(energy: Kind, routine: str) -> Kind:
    """Return the same energy with gradients that raise RuntimeError if differentiated again.

    Args:
        routine: the name for the error message.

    Raises:
        TypeError: see :func:`check_outside_transforms`.
    """
    check_outside_transforms("energy")
    if not torch.is_grad_enabled():
        return energy
    record: Any = energy
    learnt: dict[str, Any] = {
        name: _Once.apply(value, routine)
        for name, value in ((each.name, getattr(energy, each.name)) for each in fields(record))
        if isinstance(value, Tensor) and value.requires_grad
    }
    return replace(record, **learnt) if learnt else energy


class _Once(torch.autograd.Function):
    """The identity function with a gradient that cannot be differentiated again."""

    @staticmethod
    def forward(ctx, tensor: Tensor, routine: str) -> Tensor:
        ctx.save_for_backward(tensor)
        ctx.routine = routine
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:
        # Make the gradient depend on the tensors, so that a second derivative calls _Refusal.backward.
        return _Refusal.apply(grad, *ctx.saved_tensors, ctx.routine), None


class _Refusal(torch.autograd.Function):
    """The identity function, applied to a gradient: differentiating the result raises RuntimeError."""

    @staticmethod
    def forward(ctx, grad: Tensor, tensor: Tensor, routine: str) -> Tensor:
        ctx.routine = routine
        return grad.view_as(grad)

    @staticmethod
    def backward(ctx, grad: Tensor) -> None:
        raise RuntimeError(
            f"{ctx.routine}: expected only first derivatives, got a second; what the gradient takes as "
            "constants depends on the energy"
        )
