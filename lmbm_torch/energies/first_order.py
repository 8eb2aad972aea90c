"""Gradients that are right, but are not differentiable themselves: those that hold at a fixed point.

They take messages or an active set for constants, which is right for the value's own gradient and wrong for
what derives from that.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from lmbm_torch.checks import check_outside_transforms
from lmbm_torch.energies.base import BaseEnergy

__all__ = ["first_order"]

Kind = TypeVar("Kind", bound=BaseEnergy)


def first_order(energy: Kind, routine: str) -> Kind:
    """The same energy, whose gradients raise RuntimeError where they are differentiated in their turn.

    Args:
        routine: named by the error.

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
    """The identity; its gradient has no derivative."""

    @staticmethod
    def forward(ctx, tensor: Tensor, routine: str) -> Tensor:
        ctx.save_for_backward(tensor)
        ctx.routine = routine
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:
        # With create_graph the gradient depends on the tensor, whatever the graph behind it says.
        return _Refusal.apply(grad, *ctx.saved_tensors, ctx.routine), None


class _Refusal(torch.autograd.Function):
    """The identity of a gradient, whose own backward pass refuses."""

    @staticmethod
    def forward(ctx, grad: Tensor, tensor: Tensor, routine: str) -> Tensor:
        ctx.routine = routine
        return grad.view_as(grad)

    @staticmethod
    def backward(ctx, grad: Tensor) -> None:
        raise RuntimeError(
            f"{ctx.routine}: expected its gradient to be differentiated no further, since what it takes as "
            "constants there depends on the energy"
        )
