"""One update, repeated until nothing moves: how coordinate ascent ends, example by example."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from lmbm_torch.inference.results import Status
from lmbm_torch.shapes import Float
from lmbm_torch.verdicts import is_supposing, is_traced

__all__ = ["repeat"]

# Whether every example has ended is asked this seldom where each question waits for the device.
CHECK_EVERY = 8


def repeat(
    update: Callable[[Tensor], Tensor], start: Float[Tensor, "batch units"], *, num_iters: int, tol: float
) -> tuple[Float[Tensor, "batch units"], Status]:
    """``start``, after as many ``update`` as it takes each example to move by at most ``tol``.

    An example that has converged stays as it is, so that no other one of its batch has a say in its answer.

    Args:
        update: of all examples at once, each on its own.
        start: where to begin.
        num_iters: updates at most.
        tol: an example has converged once an update moves none of its units by more.

    Returns:
        Where each example has come to, and its status: ``residual`` is the largest move of its last update,
        ``exact`` is false.
    """
    values = start
    residual = start.new_full((len(start),), torch.inf)
    iterations = torch.zeros_like(residual, dtype=torch.int64)
    # Compiled code and CUDA graphs make every update.
    is_asked = not (is_traced() or is_supposing())
    check_every = 1 if start.device.type == "cpu" else CHECK_EVERY
    for iteration in range(num_iters):
        moving = residual > tol
        is_time = is_asked and iteration % check_every == 0 and 0 < iteration <= num_iters - check_every
        if is_time and not bool(moving.any()):
            break
        updated = torch.where(moving[:, None], update(values), values)
        residual = torch.where(moving, (updated - values).abs().amax(-1), residual)
        iterations = iterations + moving
        values = updated
    converged = residual <= tol
    return values, Status(torch.zeros_like(converged), converged, iterations, residual)
