"""Log partition of chains on the CPU as an operator of PyTorch whose gradient is the marginals.

One forward–backward pass of a kernel computes both. ``torch.compile`` treats ``lmbm::chain_sums`` as one
node. Under ``torch.func.vmap`` the mapped axis is joined with the batch.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lmbm_torch.energies.chain import ChainEnergy
from lmbm_torch.inference.trees import chain_steps
from lmbm_torch.inference.trees.chain_steps import Chains
from lmbm_torch.kernels.operators import is_kept, joined, operator
from lmbm_torch.shapes import Float
from lmbm_torch.torch_internals import is_mapped, transform
from lmbm_torch.verdicts import is_traced, supposing

__all__ = ["log_partition"]


def log_partition(energy: ChainEnergy) -> Float[Tensor, " batch"]:
    """Return log Σ_y exp(score(y)), differentiable any number of times; within ``vmap`` only once.

    Args:
        energy: chains in float32 or float64.

    Raises:
        ValueError: NaN or +∞ in the energy; a chain whose labellings are all forbidden.
    """
    if not _suits_operator(energy):
        return by_steps(energy)
    tensors = energy.unary, energy.transition, energy.lengths
    if is_mapped_energy(energy):
        return _MappedSums.apply(*tensors)[0]
    needs_gradient = energy.unary.requires_grad or energy.transition.requires_grad
    return chain_sums(*tensors, torch.is_grad_enabled() and needs_gradient)[0]


def by_steps(energy: ChainEnergy) -> Float[Tensor, " batch"]:
    """Return log Z by differentiable operations, one position after another."""
    forward, scale = chain_steps.forward(Chains.of(energy))
    return scale + forward[-1].logsumexp(-1)


def is_mapped_energy(energy: ChainEnergy) -> bool:
    """Return whether ``torch.func.vmap`` maps over a tensor of the energy."""
    return not is_traced() and any(map(is_mapped, (energy.unary, energy.transition, energy.lengths)))


def _suits_operator(energy: ChainEnergy) -> bool:
    """Return whether the operator has all derivatives that callers may need."""
    if not is_kept(energy.device):
        return False
    return is_traced() or transform() is None or is_mapped_energy(energy)


def _empty_sums(
    unary: Tensor, transition: Tensor, lengths: Tensor, with_marginals: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Return empty tensors with the shapes and dtypes of the results of :func:`chain_sums`."""
    nodes, edges = _empty(unary, transition, rows=unary.shape[0] if with_marginals else 0)
    return unary.new_empty(unary.shape[0]), nodes, edges


def _empty(unary: Tensor, transition: Tensor, rows: Any) -> tuple[Tensor, Tensor]:
    steps = unary.shape[1] - 1
    steps = steps if transition.ndim == 4 else min(1, steps)
    states = unary.shape[2]
    return unary.new_empty(rows, *unary.shape[1:]), unary.new_empty(rows, steps, states, states)


@operator(
    "chain_sums",
    "(Tensor unary, Tensor transition, Tensor lengths, bool with_marginals) -> (Tensor, Tensor, Tensor)",
    _empty_sums,
    fixed={"transition": 2},
)
def chain_sums(
    unary: Tensor, transition: Tensor, lengths: Tensor, with_marginals: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Return log Z (batch,), P(y_t) (batch, length, states), and P(y_t, y_{t+1}).

    P(y_t, y_{t+1}) is (batch, steps, states, states), or for a shared transition the sum over the steps,
    (batch, 1 or 0, states, states). Marginals are empty if ``with_marginals`` is false.
    """
    # Within this operator, even under torch.func, tensors are plain, so their values can be checked.
    with supposing(None):
        energy = ChainEnergy(unary, transition, lengths)
        settings = {"with_marginals": with_marginals, "each_step": not energy.is_shared, "spends": True}
        found = chain_steps.sums(energy, Chains.of(energy), **settings)
        if found is not None:
            return found[2], found[0], found[1]
        # Compute marginals by formulas, since autograd does not work within an operator.
        fine = energy.to(torch.float64)
        if not with_marginals:
            return by_steps(fine).to(unary.dtype), *_empty(unary, transition, rows=0)
        nodes, edges, total = chain_steps.sums_by_steps(fine, Chains.of(fine))
        if energy.is_shared:
            edges = edges.sum(1, keepdim=True)[:, : min(1, edges.shape[1])]
        return total.to(unary.dtype), nodes.to(unary.dtype), edges.to(unary.dtype)


def _sums_by_steps(unary: Tensor, transition: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return :func:`chain_sums` by differentiable operations, for tensors that require gradients."""
    steps, is_shared = unary.shape[1] - 1, transition.ndim == 2
    tables = transition.expand(len(unary), steps, -1, -1) if is_shared else transition
    total = by_steps(ChainEnergy(unary, tables, lengths))
    nodes, edges = torch.autograd.grad(
        total.sum(), (unary, tables), create_graph=True, allow_unused=True, materialize_grads=True
    )
    return total, nodes, edges.sum(1, keepdim=True)[:, : min(1, steps)] if is_shared else edges


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    unary, transition, lengths = inputs[:3]
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(unary, transition, lengths, *output[1:])


def _backward(
    ctx: Any, by_total: Tensor | None, by_nodes: Tensor | None, by_edges: Tensor | None
) -> tuple[Tensor | None, Tensor | None, None, None]:
    """Return the gradients with respect to the unaries and the transition."""
    unary, transition, lengths, nodes, edges = ctx.saved_tensors
    if by_nodes is not None or by_edges is not None:
        return *_of_marginals((unary, transition, lengths), (by_total, by_nodes, by_edges)), None, None
    if by_total is None:
        return None, None, None, None
    if torch.is_grad_enabled() and not is_traced() and transform() is None:
        # A second derivative may be needed: differentiate the steps.
        again = by_steps(ChainEnergy(unary, transition, lengths))
        inputs = [each for each in (unary, transition) if each.requires_grad]
        found = iter(torch.autograd.grad(again, inputs, by_total, create_graph=True, allow_unused=True))
        by_parts = [next(found) if each.requires_grad else None for each in (unary, transition)]
        return by_parts[0], by_parts[1], None, None
    if nodes.shape[0] == 0:
        _, nodes, edges = chain_sums(unary, transition, lengths, True)
    by_unary = nodes * by_total[:, None, None]
    if transition.ndim == 4:
        return by_unary, edges * by_total[:, None, None, None], None, None
    return by_unary, torch.einsum("b,bksr->sr", by_total, edges), None, None


def _of_marginals(
    inputs: tuple[Tensor, Tensor, Tensor], weights: tuple[Tensor | None, ...]
) -> tuple[Tensor, Tensor]:
    """Return the gradients of a weighted sum of marginals with respect to the unaries and the transition."""
    if transform() is not None:
        raise RuntimeError("log_partition: within torch.func.vmap, expected a first derivative, got a second")
    with torch.enable_grad():
        unary, transition = (each.detach().requires_grad_() for each in inputs[:2])
        sums = _sums_by_steps(unary, transition, inputs[2])
        pairs = zip(weights, sums, strict=True)
        values = [(w * each).sum() for w, each in pairs if w is not None and w.shape[0]]
        by_unary, by_transition = torch.autograd.grad(
            values, (unary, transition), allow_unused=True, materialize_grads=True
        )
    return by_unary, by_transition


chain_sums.register_autograd(_backward, setup_context=_keep)


class _MappedSums(torch.autograd.Function):
    """Sums and marginals of chains within ``torch.func.vmap``, where the operator itself has no gradient."""

    @staticmethod
    def forward(unary: Tensor, transition: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # pyright: ignore[reportIncompatibleMethodOverride]  # torch: any arguments
        return chain_sums(unary, transition, lengths, True)

    setup_context = staticmethod(_keep)  # pyright: ignore[reportAssignmentType]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        return _backward(ctx, *gradients)[:3]

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], unary: Tensor, transition: Tensor, lengths: Tensor
    ) -> tuple[tuple[Tensor, ...], tuple[int, int, int]]:
        """Compute the log partitions of all mapped batches as one batch; the mapped axis comes first."""
        size = info.batch_size

        rows = len(unary if in_dims[0] is None else unary.select(in_dims[0], 0))
        unary, lengths = joined(unary, in_dims[0], size, rows), joined(lengths, in_dims[2], size, rows)
        steps = unary.shape[1] - 1
        is_shared = transition.ndim == (2 if in_dims[1] is None else 3)
        if not is_shared:
            transition = joined(transition, in_dims[1], size, rows)
        elif in_dims[1] is not None:
            first = transition.movedim(in_dims[1], 0)
            transition = first[:, None, None].expand(-1, rows, steps, -1, -1).flatten(0, 1)
        total, nodes, edges = _MappedSums.apply(unary, transition, lengths)
        if is_shared and in_dims[1] is not None:
            edges = edges.sum(1, keepdim=True)[:, : min(1, steps)]
        found = tuple(each.unflatten(0, (size, rows)) for each in (total, nodes, edges))
        return found, (0, 0, 0)
