"""Checks of tensor values: at once on the CPU, batched on a GPU, asserted in compiled code.

This module is internal and may change. A check of values ends in a bool on the host. On a GPU each check
would make the host wait for all earlier work, and then the GPU wait for the host. Within :func:`one_door`, a
decorator of public functions, verdicts are therefore collected and read in one copy: when the function asks
for a :func:`number`, or at the end. No check runs twice within a door, and no failure is lost: the first
failed verdict raises the error that an immediate check would have raised.

In traced code (:func:`is_traced`) no value can be read. Verdicts become assertions of the compiled code,
which raise RuntimeError on the CPU and a device-side assertion on a GPU. :func:`supposing` skips the checks
if the caller knows the answers, such as in a CUDA graph.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import get_proxy_mode

from lmbm_torch.torch_internals import assert_async

__all__ = []

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


Key = tuple[object, ...]


class _Door(threading.local):
    """The pending questions of a thread to GPU tensors, and the answers, within a public function."""

    def __init__(self) -> None:
        self.depth = 0
        # The scalar of each question, and for a verdict the action for 0.
        self.pending: dict[Key, tuple[Tensor, Callable[[], None] | None]] = {}
        self.answers: dict[Key, float] = {}
        # Kept, so that no other tensor gets the same identity meanwhile.
        self.tensors: list[tuple[Tensor, ...]] = []
        # Numbers given by the caller of supposing.
        self.supposed: Mapping[str, float] | None = None

    def ask(
        self,
        key: Key,
        tensors: tuple[Tensor, ...],
        compute: Callable[[], Tensor],
        refuse: Callable[[], None] | None = None,
    ) -> None:
        """Add a question unless pending; a foreseen verdict becomes a real verdict."""
        if key in self.answers:
            if refuse is not None and not self.answers[key]:
                refuse()
        elif key in self.pending:
            scalar, known = self.pending[key]
            self.pending[key] = scalar, known or refuse
        else:
            with torch.no_grad():
                self.pending[key] = compute(), refuse
            self.tensors.append(tensors)

    def wait(self) -> None:
        """Read the pending answers; the first failed verdict raises."""
        pending, self.pending = self.pending, {}
        if not pending:
            return
        values = torch.stack([scalar.double() for scalar, _ in pending.values()]).tolist()
        self.answers |= dict(zip(pending, values, strict=True))
        for (_, refuse), value in zip(pending.values(), values, strict=True):
            if refuse is not None and not value:
                refuse()

    def leave(self) -> None:
        try:
            self.wait()
        finally:
            self.pending, self.answers, self.tensors = {}, {}, []


_door = _Door()


def is_traced() -> bool:
    """Return whether ``torch.compile``, ``torch.export`` or ``make_fx`` trace: no tensor can be read."""
    return torch.compiler.is_compiling() or get_proxy_mode() is not None


def one_door(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Wrap a function: all checks of GPU tensors inside share a wait."""

    @wraps(function)
    def checked(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        if is_traced():
            return function(*args, **kwargs)
        _door.depth += 1
        try:
            return function(*args, **kwargs)
        finally:
            _door.depth -= 1
            if _door.depth == 0:
                _door.leave()

    return checked


@contextmanager
def supposing(numbers: Mapping[str, float] | None) -> Iterator[None]:
    """Skip all reads of tensors in the thread: checks pass, and :func:`number` returns given numbers.

    A wait for the GPU is impossible in a CUDA graph. The caller checks the tensors before or after the graph.

    Args:
        numbers: by the question's name, such as ``"largest message"``; an unknown question raises KeyError.
            None for reads and checks as usual, such as of plain tensors within a transform.
    """
    before, _door.supposed = _door.supposed, numbers
    try:
        yield
    finally:
        _door.supposed = before


def is_supposing() -> bool:
    """Return whether the thread is within :func:`supposing`."""
    return _door.supposed is not None


def refuse_unless(
    what: str, tensors: tuple[Tensor, ...], holds: Callable[[], Tensor], refuse: Callable[[], None]
) -> None:
    """Call ``refuse`` unless ``holds()``, a bool on the tensors' device; now, or at the end of the door.

    Args:
        what: the name of the check, the same for the same check of other tensors; the message of compiled
            code.
        tensors: all tensors that the verdict depends on.
        refuse: raises an error with the numbers of the message.
    """
    if is_supposing():
        return
    if is_traced() and assert_async is not None:
        assert_async(holds(), what)
        return
    if is_traced() or not _is_read_late(tensors):
        if not bool(holds()):
            refuse()
        return
    _door.ask(_key(what, tensors), tensors, holds, refuse)


def foresee(what: str, tensors: tuple[Tensor, ...], compute: Callable[[], Tensor]) -> None:
    """Read the value of a later :func:`number` or :func:`refuse_unless` at the next wait."""
    if not is_supposing() and _is_read_late(tensors):
        _door.ask(_key(what, tensors), tensors, compute)


def number(what: str, tensors: tuple[Tensor, ...], compute: Callable[[], Tensor]) -> float:
    """Return the value of ``compute()``, a tensor without axes; on a GPU with all pending questions.

    Args:
        what, tensors: see :func:`refuse_unless`.
    """
    if _door.supposed is not None:
        return _door.supposed[what]
    if not _is_read_late(tensors):
        return compute().item()
    foresee(what, tensors, compute)
    key = _key(what, tensors)
    if key not in _door.answers:
        _door.wait()
    return _door.answers[key]


def settle() -> None:
    """Wait for pending questions, before a kernel crashes for wrong values such as NaN."""
    if not is_traced():
        _door.wait()


def _is_read_late(tensors: tuple[Tensor, ...]) -> bool:
    return _door.depth > 0 and tensors[0].device.type != "cpu"


def _key(what: str, tensors: tuple[Tensor, ...]) -> Key:
    return (what, *map(_identity, tensors))


def _identity(tensor: Tensor) -> tuple[int, int]:
    """Return an identity with the version of the tensor, except for tensors of inference mode."""
    return id(tensor), -1 if tensor.is_inference() else tensor._version


HOST = torch.device("cpu")


def searched_on_host(search: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Return the search made to run on the CPU, with the result on the device of the arguments.

    A step of such a search is a handful of operations on as many numbers as there are open nodes, and the
    next step depends on the results: thousands of launches and waits on a device, against one copy. Arguments
    on several devices are passed on for the search to refuse.
    """

    @wraps(search)
    def on_host(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        devices = {*_devices((args, tuple(kwargs.values())))}
        if len(devices) != 1 or devices == {HOST}:
            return search(*args, **kwargs)
        moved: Any = {name: _moved(value, HOST) for name, value in kwargs.items()}
        found = search(*_moved(args, HOST), **moved)  # pyright: ignore[reportCallIssue]  # the same arguments
        return _moved(found, *devices)

    return on_host


def _devices(value: Any) -> Iterator[torch.device]:
    """Yield the devices of tensors and of energies, also within records, lists and tuples."""
    if isinstance(value, list | tuple):
        for each in value:
            yield from _devices(each)
    elif isinstance(value, Tensor) or (_is_record(value) and hasattr(value, "device")):
        # The constructor of an energy holds all tensors to one device.
        yield value.device
    elif _is_record(value):
        for field in fields(value):
            yield from _devices(getattr(value, field.name))


def _moved(value: Any, device: torch.device) -> Any:
    if isinstance(value, Tensor):
        return value.to(device)
    if _is_record(value):
        parts = {field.name: getattr(value, field.name) for field in fields(value)}
        changed = {name: moved for name, part in parts.items() if (moved := _moved(part, device)) is not part}
        return replace(value, **changed) if changed else value
    if isinstance(value, list | tuple):
        moved = [_moved(each, device) for each in value]
        return value if all(map(_is, moved, value)) else type(value)(moved)
    return value


def _is(one: Any, other: Any) -> bool:
    return one is other


def _is_record(value: Any) -> bool:
    return is_dataclass(value) and not isinstance(value, type)
