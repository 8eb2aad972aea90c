"""How long and from where messages are passed: the arguments that every kind of belief propagation takes."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from lmbm_torch.checks import (
    check_count,
    check_finite,
    check_like,
    check_not_negative,
    check_probabilities,
    check_shape,
)
from lmbm_torch.shapes import Known

__all__ = ["Settings"]


class Settings(NamedTuple):
    """The keyword arguments of the public functions, by their names."""

    num_iters: int
    tol: float
    damping: float
    known: Known | None
    messages: Any
    keep_messages: bool = False
    init: Tensor | None = None

    def check(self) -> None:
        """Raise ValueError for no iteration, a negative tolerance, or damping outside [0, 1)."""
        check_count("num_iters", self.num_iters)
        check_not_negative("tol", self.tol)
        if not 0 <= self.damping < 1:
            raise ValueError(f"damping: expected at least 0 and below 1, got {self.damping}")

    def start(self, name: str, like: Tensor, *shape: int) -> Tensor | None:
        """The tensor ``name`` of the messages to start from, without gradient, if there are any.

        Raises:
            ValueError: it has another shape, another dtype or device than ``like``, or is not finite.
        """
        if self.messages is None:
            return None
        start = getattr(self.messages, name)
        check_shape(f"messages.{name}", start, *shape)
        check_like(f"messages.{name}", start, "energy", like)
        check_finite(f"messages.{name}", start)
        return start.detach()

    def beliefs(self, like: Tensor) -> Tensor | None:
        """The probabilities of units with log-potentials ``like`` to start from, if there are any.

        Raises:
            ValueError: there are messages as well, they have another shape, dtype or device, or are none.
        """
        if self.init is None:
            return None
        if self.messages is not None:
            raise ValueError("init: expected None where messages are given, got both")
        check_shape("init", self.init, *like.shape)
        check_like("init", self.init, "energy", like)
        check_probabilities("init", self.init)
        return self.init.detach()
