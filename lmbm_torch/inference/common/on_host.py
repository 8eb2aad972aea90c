"""Searches whose steps are too small for a device: they run on the CPU, wherever the energies are.

A step of such a search is a handful of kernels over as many numbers as there are open nodes, and the next one
depends on what it finds: launches and waits of microseconds each, some thousands of them, against one copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

__all__ = ["searched_on_host"]

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
HOST = torch.device("cpu")


def searched_on_host(search: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """The same search on the CPU; its result is on the device of its arguments.

    Arguments of several devices are passed on as they are, for the search to refuse.
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
    """The devices of tensors and of energies, in records, lists and tuples too."""
    if isinstance(value, list | tuple):
        for each in value:
            yield from _devices(each)
    elif isinstance(value, Tensor) or (_is_record(value) and hasattr(value, "device")):
        # An energy's tensors share one: its constructor sees to it.
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
