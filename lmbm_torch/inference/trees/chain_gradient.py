"""Log partitions of chains whose gradient is computed by one forward–backward pass of a kernel on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from lmbm_torch.energies.chain import ChainEnergy
from lmbm_torch.inference.trees import chain_steps
from lmbm_torch.inference.trees.chain_steps import Chains
from lmbm_torch.shapes import Float
from lmbm_torch.torch_internals import transform

__all__ = ["log_partition"]


def log_partition(
    energy: ChainEnergy, by_steps: Callable[[ChainEnergy], Tensor]
) -> Float[Tensor, " batch"] | None:
    """Return log Z with the marginals as gradient, or None where no kernel may be used.

    Args:
        energy: chains in float32 or float64.
        by_steps: log Z by differentiable operations, for gradients of gradients.

    Raises:
        ValueError: NaN or +∞ in the energy; a chain without a labelling that is allowed.
    """
    if not chain_steps.is_on_host(energy.unary) or transform() is not None:
        return None
    needs_gradient = energy.unary.requires_grad or energy.transition.requires_grad
    found = _sums(energy, with_marginals=torch.is_grad_enabled() and needs_gradient)
    if found is None:
        return None
    return _LogPartition.apply(energy.unary, energy.transition, energy, found, by_steps)


@torch.no_grad()
def _sums(energy: ChainEnergy, *, with_marginals: bool) -> tuple[Tensor, Tensor, Tensor] | None:
    """Return :func:`~.chain_steps.sums`, with the pairs of a shared table summed over the steps."""
    chains = Chains.of(energy)
    return chain_steps.sums(energy, chains, with_marginals=with_marginals, each_step=not energy.is_shared)


class _LogPartition(torch.autograd.Function):
    """Log Z of chains; the gradient by the unaries is P(y_t), by the transitions P(y_t, y_{t+1})."""

    @staticmethod
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]  # torch: any arguments
        ctx: Any,
        unary: Tensor,
        transition: Tensor,
        energy: ChainEnergy,
        sums: tuple[Tensor, Tensor, Tensor],
        by_steps: Callable[[ChainEnergy], Tensor],
    ) -> Tensor:
        ctx.save_for_backward(unary, transition)
        ctx.energy, ctx.sums, ctx.by_steps = energy, sums, by_steps
        return sums[2]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = gradients
        unary, transition = ctx.saved_tensors
        wanted = ctx.needs_input_grad[:2]
        if torch.is_grad_enabled():
            # A gradient of the gradient is asked for.
            again = ctx.by_steps(replace(ctx.energy, unary=unary, transition=transition))
            inputs = [each for each, is_wanted in zip((unary, transition), wanted, strict=True) if is_wanted]
            found = iter(torch.autograd.grad(again, inputs, gradient, create_graph=True))
            return *(next(found) if is_wanted else None for is_wanted in wanted), None, None, None
        # Scaled in place, since the tables of long chains take most of the memory; a second call sums anew.
        sums = ctx.sums or _sums(ctx.energy, with_marginals=True)
        assert sums is not None  # as at first
        nodes, edges, _ = sums
        ctx.sums = None
        by_unary = nodes.mul_(gradient[:, None, None]) if wanted[0] else None
        by_transition = None
        if wanted[1] and transition.ndim == 4:
            by_transition = edges.mul_(gradient[:, None, None, None])
        elif wanted[1]:
            by_transition = torch.einsum("b,bksr->sr", gradient, edges)
        return by_unary, by_transition, None, None, None
