"""Newton's method for kernel logistic regression with a kernel matrix of low rank.

With K = L Lᵀ the problem is multinomial logistic regression on the rows of L,

    min_W ½‖W‖² + Σ_i C_i (logsumexp_y (L W)_iy − Σ_y t_iy (L W)_iy),

with as many dimensions as the rank of K. With a large C and few dimensions all dual variables depend on each
other, and coordinate steps are slow. Newton steps are not: they use conjugate gradients with the Hessian of
each class as preconditioner. The predicted distributions are dual variables
(dual_optimization_conditional_models_2006, Equation 25), with a duality gap computed from the whole kernel.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from lmbm_torch.shapes import Float
from lmbm_torch.solvers.gram import Gram

# Expected number of Newton steps, and the largest number of multiplications of a step, which also limits
# memory.
STEPS_EXPECTED = 20
MOST_WORK = 1e10
ROWS_AT_ONCE = 256
NEWTON_STEPS = 60
CONJUGATE_STEPS = 200
# The method ends at this share of the initial squared gradient, the limit of double precision.
SOLVED = 1e-20
# Least share of the gain that the slope promises.
ENOUGH = 1e-4
SHORTEST_STEP = 1e-8


def largest_rank(num_instances: int, num_classes: int, passes: float) -> int:
    """Return the largest rank at which Newton's method costs at most ``passes`` passes over the kernel.

    A step takes instances · classes · rank² multiplications, a pass instances² · classes.
    """
    affordable = min(passes * num_instances / STEPS_EXPECTED, MOST_WORK / (num_instances * num_classes))
    return min(num_instances, int(affordable**0.5))


def low_rank_factor(gram: Gram, max_rank: int) -> Float[Tensor, "instances rank"] | None:
    """Compute L with L Lᵀ = K up to round-off, by Cholesky's method with pivots.

    Every row of the kernel is read once for the diagonal, and the rows of the pivots again.

    Returns:
        L in float64; None if the rank is above ``max_rank``.
    """
    num_instances = gram.num_instances
    blocks = [slice(first, first + ROWS_AT_ONCE) for first in range(0, num_instances, ROWS_AT_ONCE)]
    parts = [gram.rows(block).diagonal(offset=block.start) for block in blocks]
    remaining = torch.cat(parts).double()
    least = 64 * torch.finfo(parts[0].dtype).eps * float(remaining.max())
    factor = remaining.new_empty(num_instances, max_rank)
    for rank in range(max_rank):
        pivot = int(remaining.argmax())
        if float(remaining[pivot]) <= least:
            return factor[:, :rank].contiguous()
        row = gram.rows(torch.tensor([pivot], device=remaining.device))[0].double()
        column = (row - factor[:, :rank] @ factor[pivot, :rank]) / remaining[pivot].sqrt()
        factor[:, rank] = column
        remaining = (remaining - column.square()).clamp(min=0)
        remaining[pivot] = 0
    return factor if float(remaining.max()) <= least else None


def maximise(
    factor: Float[Tensor, "instances rank"],
    targets: Float[Tensor, "instances classes"],
    upper: Float[Tensor, " instances"],
) -> Float[Tensor, "instances classes"]:
    """Return the model's distributions over the classes at the optimum, with entries above zero.

    Args:
        factor: L.
        targets: t.
        upper: C.
    """
    # Start at zero: for large C, the weights of duals far from the optimum are a worse start.
    weights = factor.new_zeros(factor.shape[1], targets.shape[1])
    value, scores = _value(factor, targets, upper, weights)
    first = None
    for _ in range(NEWTON_STEPS):
        model = scores.softmax(-1)
        gradient = weights + factor.mT @ (upper[:, None] * (model - targets))
        square = float(gradient.square().sum())
        first = square if first is None else first
        if square <= SOLVED * first:
            break
        step = _newton_step(factor, upper, model, gradient)
        slope = float((step * gradient).sum())
        share = 1.0
        while share > SHORTEST_STEP:
            moved = weights + share * step
            after, moved_scores = _value(factor, targets, upper, moved)
            if after <= value + ENOUGH * share * slope:
                break
            share /= 2
        else:
            # Round-off hides the remaining gain.
            break
        weights, value, scores = moved, after, moved_scores
    probabilities = scores.softmax(-1).clamp(min=1e-300)
    return probabilities / probabilities.sum(-1, keepdim=True)


def _value(factor: Tensor, targets: Tensor, upper: Tensor, weights: Tensor) -> tuple[float, Tensor]:
    """Return the objective, and the scores of all instances."""
    scores = factor @ weights
    losses = -(targets * scores.log_softmax(-1)).sum(-1)
    return float(0.5 * weights.square().sum() + upper @ losses), scores


def _newton_step(factor: Tensor, upper: Tensor, model: Tensor, gradient: Tensor) -> Tensor:
    """Compute −Hessian⁻¹ gradient by conjugate gradients; the tolerance shrinks with the gradient."""

    def hessian(direction: Tensor) -> Tensor:
        change = model * (factor @ direction)
        change -= model * change.sum(-1, keepdim=True)
        return direction + factor.mT @ (upper[:, None] * change)

    precondition = _preconditioner(factor, upper, model)
    step, residual = torch.zeros_like(gradient), -gradient
    solved = precondition(residual)
    direction, product = solved, float((residual * solved).sum())
    enough = product * min(0.01, product**0.5) ** 2
    for _ in range(CONJUGATE_STEPS):
        image = hessian(direction)
        rate = product / float((direction * image).sum())
        step = step + rate * direction
        residual = residual - rate * image
        solved = precondition(residual)
        last, product = product, float((residual * solved).sum())
        if product <= enough:
            break
        direction = solved + product / last * direction
    return step


def _preconditioner(factor: Tensor, upper: Tensor, model: Tensor) -> Callable[[Tensor], Tensor]:
    """Return a solver for each class's own Hessian, 1 + Lᵀ diag(C p (1 − p)) L."""
    identity = torch.eye(factor.shape[1], dtype=factor.dtype, device=factor.device)
    weight = upper[:, None] * model * (1 - model)
    blocks = [identity + factor.mT @ (weight[:, each, None] * factor) for each in range(model.shape[1])]
    hessians = torch.stack(blocks)
    lower, failed = torch.linalg.cholesky_ex(hessians)
    if failed.any():
        # With extremely large weights the identity vanishes by round-off; any positive definite matrix works.
        round_off = 10 * len(identity) * torch.finfo(identity.dtype).eps
        largest = hessians.diagonal(dim1=-2, dim2=-1).amax(-1)
        lower = torch.linalg.cholesky(hessians + round_off * largest[:, None, None] * identity)

    def solve(right: Tensor) -> Tensor:
        return torch.cholesky_solve(right.mT[..., None], lower)[..., 0].mT

    return solve
