"""Fixed-point iterations: an update is repeated until the values of each example stop changing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lmbm_torch.checks import (
    check_count,
    check_finite,
    check_like,
    check_not_negative,
    check_probabilities,
    check_shape,
)
from lmbm_torch.inference.common.results import Status
from lmbm_torch.shapes import Float, Known
from lmbm_torch.verdicts import is_supposing, is_traced


class Settings(NamedTuple):
    """Keyword arguments that the public functions of iterative methods share."""

    num_iters: int
    tol: float
    damping: float
    known: Known | None
    messages: Any
    keep_messages: bool = False
    init: Tensor | None = None

    def check(self) -> None:
        """Raise ValueError for fewer than 1 iteration, a negative tolerance, or damping outside [0, 1)."""
        check_count("num_iters", self.num_iters)
        check_not_negative("tol", self.tol)
        if not 0 <= self.damping < 1:
            raise ValueError(f"damping: expected at least 0 and below 1, got {self.damping}")

    def start(self, name: str, like: Tensor, *shape: int) -> Tensor | None:
        """Return the tensor ``name`` of the messages to start from, without gradient; None if not given.

        Raises:
            ValueError: the tensor has another shape, dtype or device than ``like``, or is not finite.
        """
        if self.messages is None:
            return None
        start = getattr(self.messages, name)
        check_shape(f"messages.{name}", start, *shape)
        check_like(f"messages.{name}", start, "energy", like)
        check_finite(f"messages.{name}", start)
        return start.detach()

    def beliefs(self, like: Tensor) -> Tensor | None:
        """Return the probabilities ``init`` of units to start from, without gradient; None if not given.

        Raises:
            ValueError: messages are given as well; ``init`` has another shape, dtype or device, or values
                outside [0, 1].
        """
        if self.init is None:
            return None
        if self.messages is not None:
            raise ValueError("init: expected None when messages are given, got both")
        check_shape("init", self.init, *like.shape)
        check_like("init", self.init, "energy", like)
        check_probabilities("init", self.init)
        return self.init.detach()


# Number of iterations between two checks for convergence on a GPU; each check waits for the GPU.
CHECK_EVERY = 8


def repeat(
    update: Callable[[Tensor], Tensor], start: Float[Tensor, "batch units"], *, num_iters: int, tol: float
) -> tuple[Float[Tensor, "batch units"], Status]:
    """Apply ``update`` repeatedly to ``start``, and return the last values.

    An example ends once an update changes each of the values by at most ``tol``. Examples are independent.

    Args:
        update: a function from the values of all examples to new values, where the new values of an example
            depend only on the old values of the same example.
        start: the first values.
        num_iters: the largest number of updates.
        tol: the largest change of a value in the last update of an example.

    Returns:
        The last values of each example, and the status: ``residual`` is the largest change in the last
        update, ``exact`` is false.
    """
    values = start
    residual = start.new_full((len(start),), torch.inf)
    iterations = torch.zeros_like(residual, dtype=torch.int64)
    # Traced code (compiled, or a CUDA graph) cannot look at values to stop early, and runs all updates.
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
