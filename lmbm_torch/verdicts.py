"""Verdicts on the values of tensors: at once on the CPU, together from a device, asserted where code is compiled.

A check of values ends in a bool on the host. On a device each one would make the host wait until everything
before it has been computed, and then the device wait for the host. So within :func:`one_door`, which stands at
a public function, verdicts are kept and read in one copy: when the function asks for a number by :func:`read`,
or at its end. Nothing is checked twice within a door, and nothing is let through it: the first verdict that
failed raises what it would have raised at once.

Within ``torch.compile`` no value can be read, and verdicts become assertions of the compiled code, which
raises RuntimeError on the CPU and a device-side assertion on a GPU.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

__all__ = ["one_door", "read", "refuse_unless"]

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class _Door(threading.local):
    """What a thread has yet to read, and what it has checked, while it is within a public function."""

    depth: int = 0

    def __init__(self) -> None:
        self.pending: list[tuple[Tensor, Callable[[], None]]] = []
        # With the tensors, so that no other one can take over their identity meanwhile.
        self.checked: dict[tuple[object, ...], tuple[Tensor, ...]] = {}


_door = _Door()


def one_door(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """The same function, whose checks of tensors on a device, those of functions it calls too, share a wait."""

    @wraps(function)
    def checked(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        if torch.compiler.is_compiling():
            return function(*args, **kwargs)
        _door.depth += 1
        try:
            return function(*args, **kwargs)
        finally:
            _door.depth -= 1
            if _door.depth == 0:
                _leave()

    return checked


def refuse_unless(
    what: str, tensors: tuple[Tensor, ...], holds: Callable[[], Tensor], refuse: Callable[[], None]
) -> None:
    """Call ``refuse`` unless ``holds()``, a bool on the tensors' device; now, or where the door ends.

    Args:
        what: the check's name, the same for the same check of other tensors; the message of compiled code.
        tensors: all that the verdict depends on.
        refuse: raises, with whatever numbers its message needs.
    """
    if torch.compiler.is_compiling():
        torch._assert_async(holds(), what)
        return
    if _door.depth == 0 or tensors[0].device.type == "cpu":
        if not bool(holds()):
            refuse()
        return
    key = (what, *map(_identity, tensors))
    if key not in _door.checked:
        _door.checked[key] = tensors
        with torch.no_grad():
            _door.pending.append((holds(), refuse))


def read(*scalars: Tensor) -> list[float]:
    """Numbers and bools of tensors without axes, and all verdicts that are pending: one wait."""
    if not scalars or scalars[0].device.type == "cpu":
        return [scalar.item() for scalar in scalars]
    pending, _door.pending = _door.pending, []
    flags = [flag for flag, _ in pending]
    values = torch.stack([each.detach().double() for each in (*flags, *scalars)]).tolist()
    for (_, refuse), held in zip(pending, values, strict=False):
        if not held:
            refuse()
    return values[len(pending) :]


def _leave() -> None:
    """Read what is pending at the end of the outermost door."""
    pending, _door.pending, _door.checked = _door.pending, [], {}
    if pending:
        held = torch.stack([flag for flag, _ in pending]).tolist()
        for (_, refuse), fine in zip(pending, held, strict=True):
            if not fine:
                refuse()


def _identity(tensor: Tensor) -> tuple[int, int]:
    """Another one after every change in place; tensors of inference mode do not count theirs."""
    return id(tensor), -1 if tensor.is_inference() else tensor._version
