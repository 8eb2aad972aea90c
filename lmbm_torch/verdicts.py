"""Verdicts on the values of tensors: at once on the CPU, together from a device, asserted in compiled code.

A check of values ends in a bool on the host. On a device each one would make the host wait until everything
before it has been computed, and then the device wait for the host. So within :func:`one_door`, which stands
at a public function, verdicts are kept and read in one copy: when the function asks for a :func:`number`, or
at its end. Nothing is checked twice within a door, and nothing is let through it: the first verdict that
failed raises what it would have raised at once.

Where operators are traced (:func:`is_traced`) no value can be read, and verdicts become assertions of the
compiled code, which raises RuntimeError on the CPU and a device-side assertion on a GPU. Where a caller has
its reasons to know the answers, as for a step that a CUDA graph repeats, it says so by :func:`supposing`, and
nothing is asked.
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

__all__ = [
    "foresee",
    "is_supposing",
    "is_traced",
    "number",
    "one_door",
    "refuse_unless",
    "searched_on_host",
    "settle",
    "supposing",
]

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


Key = tuple[object, ...]


class _Door(threading.local):
    """The questions of a thread to tensors on a device, and their answers, within a public function."""

    def __init__(self) -> None:
        self.depth = 0
        # The scalar of each question, and for a verdict what to do if that is 0.
        self.pending: dict[Key, tuple[Tensor, Callable[[], None] | None]] = {}
        self.answers: dict[Key, float] = {}
        # So that no other tensors can take over their identity meanwhile.
        self.tensors: list[tuple[Tensor, ...]] = []
        # Numbers that the caller answers for.
        self.supposed: Mapping[str, float] | None = None

    def ask(
        self,
        key: Key,
        tensors: tuple[Tensor, ...],
        compute: Callable[[], Tensor],
        refuse: Callable[[], None] | None = None,
    ) -> None:
        """Put a question once, whoever asks it again; a verdict that was only foreseen becomes one."""
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
        """Read what is pending; the first verdict that failed raises."""
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
    """Whether ``torch.compile``, ``torch.export`` or ``make_fx`` record operators: no tensor can be read."""
    return torch.compiler.is_compiling() or get_proxy_mode() is not None


def one_door(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """The same function, whose checks of a device's tensors share a wait, with those of what it calls."""

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
def supposing(numbers: Mapping[str, float]) -> Iterator[None]:
    """Within it this thread reads no tensor: what would be checked holds, and :func:`number` is what is said.

    A wait for the device cannot stand in a CUDA graph. The caller has checked its tensors, or does so at the
    end of what it repeats.

    Args:
        numbers: by the question's name, such as ``"largest message"``; a question that is not among them
            raises KeyError.
    """
    before, _door.supposed = _door.supposed, numbers
    try:
        yield
    finally:
        _door.supposed = before


def is_supposing() -> bool:
    """Whether this thread is within :func:`supposing`."""
    return _door.supposed is not None


def refuse_unless(
    what: str, tensors: tuple[Tensor, ...], holds: Callable[[], Tensor], refuse: Callable[[], None]
) -> None:
    """Call ``refuse`` unless ``holds()``, a bool on the tensors' device; now, or where the door ends.

    Args:
        what: the check's name, the same for the same check of other tensors; the message of compiled code.
        tensors: all that the verdict depends on.
        refuse: raises, with whatever numbers its message needs.
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
    """Let the next wait read what :func:`number` or :func:`refuse_unless` will ask for."""
    if not is_supposing() and _is_read_late(tensors):
        _door.ask(_key(what, tensors), tensors, compute)


def number(what: str, tensors: tuple[Tensor, ...], compute: Callable[[], Tensor]) -> float:
    """The value of ``compute()``, a tensor without axes; a device's is read with all that is pending.

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
    """Wait for what is pending, before a kernel that does not survive it, as draws by NaN."""
    if not is_traced():
        _door.wait()


def _is_read_late(tensors: tuple[Tensor, ...]) -> bool:
    return _door.depth > 0 and tensors[0].device.type != "cpu"


def _key(what: str, tensors: tuple[Tensor, ...]) -> Key:
    return (what, *map(_identity, tensors))


def _identity(tensor: Tensor) -> tuple[int, int]:
    """Another one after every change in place; tensors of inference mode do not count theirs."""
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
