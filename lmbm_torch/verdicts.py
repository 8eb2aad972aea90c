"""Checks of tensor values: made at once on the CPU, collected on a GPU, asserted in compiled code.

This module is internal and may change. The verdict of a check is a bool on the host (the CPU). On a GPU each
check would make the host wait for all earlier work, and then the GPU wait for the host. Within
:func:`one_door`, a decorator of public functions, verdicts are therefore collected and read in one copy: when
the function asks for a :func:`number`, or at the end. Within one call of a decorated function no check runs
twice, and no failure is lost: the first failed verdict raises the error of an immediate check.

In traced code (:func:`is_traced`) no value can be read. Verdicts become assertions of the compiled code,
which raise RuntimeError on the CPU and a device-side assertion on a GPU. :func:`supposing` skips the checks
if the caller already knows the answers, such as in a CUDA graph.
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
    """The checks and numbers for a thread to read from a GPU: pending questions, and answers."""

    def __init__(self) -> None:
        self.depth = 0
        # For each question the tensor of the answer, and for a check the function to call if it fails.
        self.pending: dict[Key, tuple[Tensor, Callable[[], None] | None]] = {}
        self.answers: dict[Key, float] = {}
        # Keep the tensors alive, so that no other tensor gets the same id meanwhile.
        self.tensors: list[tuple[Tensor, ...]] = []
        # Numbers that the caller of ``supposing`` gave; None outside of ``supposing``.
        self.supposed: Mapping[str, float] | None = None

    def ask(
        self,
        key: Key,
        tensors: tuple[Tensor, ...],
        compute: Callable[[], Tensor],
        refuse: Callable[[], None] | None = None,
    ) -> None:
        """Add a question, unless already pending or answered; :func:`foresee` asks without ``refuse``."""
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
        """Read the answers of all pending questions in one copy; raise the first failed check's error."""
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
    """Return whether ``torch.compile``, ``torch.export`` or ``make_fx`` traces: no tensor can be read."""
    return torch.compiler.is_compiling() or get_proxy_mode() is not None


def one_door(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Wrap a function to let all checks of GPU tensors inside share a single wait for the GPU."""

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

    A CUDA graph cannot wait for the GPU. The caller checks the tensors before or after the graph.

    Args:
        numbers: the answers by the question's name, such as ``"largest message"``; an unknown question raises
            KeyError. With None, tensors are read and checked as usual.
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
    """Call ``refuse`` unless ``holds()`` is true: on a CPU at once, on a GPU at the next wait.

    Args:
        what: the name of the check, the same for all tensors; in compiled code also the error message.
        tensors: all tensors that the verdict depends on.
        holds: function to compute the verdict, a bool on the tensors' device.
        refuse: function to raise the error, with numbers in the message.
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
    """Start to compute the value of a later :func:`number` or :func:`refuse_unless`, to share a wait."""
    if not is_supposing() and _is_read_late(tensors):
        _door.ask(_key(what, tensors), tensors, compute)


def number(what: str, tensors: tuple[Tensor, ...], compute: Callable[[], Tensor]) -> float:
    """Return the number in ``compute()``, a tensor without axes; on a GPU, read all pending answers, too.

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
    """Read all pending answers now, before starting a GPU kernel that wrong values would crash."""
    if not is_traced():
        _door.wait()


def _is_read_late(tensors: tuple[Tensor, ...]) -> bool:
    return _door.depth > 0 and tensors[0].device.type != "cpu"


def _key(what: str, tensors: tuple[Tensor, ...]) -> Key:
    return (what, *map(_identity, tensors))


def _identity(tensor: Tensor) -> tuple[int, int]:
    """Return the id and the version of a tensor; tensors of inference mode have no version."""
    return id(tensor), -1 if tensor.is_inference() else tensor._version


HOST = torch.device("cpu")


def searched_on_host(search: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Wrap a search to run on the CPU; the result is copied to the device of the arguments.

    Each step of a search is a few operations on one number for each open node, and the next step depends on
    the results. A GPU would need thousands of launches and waits; copying the arguments is faster. Arguments
    on several devices are passed on unchanged, for the search to refuse.
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
    """Yield the devices of all tensors and energies in a value, also within records, lists and tuples."""
    if isinstance(value, list | tuple):
        for each in value:
            yield from _devices(each)
    elif isinstance(value, Tensor) or (_is_record(value) and hasattr(value, "device")):
        # Do not look at an energy's tensors: the constructor ensures that all are on the same device.
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
