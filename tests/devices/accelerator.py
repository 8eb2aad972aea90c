"""An accelerator that is only claimed to be one: real values on the CPU, and CUDA's rules kept.

    with Accelerator() as gpu:
        found = matrix_bp.marginals(gpu.put(energy))
    gpu.violations                            # what CUDA would refuse, as (rule, operator, file:line)
    gpu.waits, gpu.uploads, gpu.launches      # by file:line

Its tensors wrap those of the CPU and say that they are on another device, so that control flow that depends
on data, autograd and optimizers run as they would there. ``waits`` are counted where the host waits for the
device (``item``, ``bool``, ``nonzero``, boolean masks, ``.cpu()``), ``uploads`` where it copies memory of its
own (``torch.tensor(list, device=…)``, lists as indices), and ``launches`` of kernels.

Not seen: sparse tensors, autocast, compiled kernels, and what only CUDA's own implementations do. Where there
is a CUDA device nothing is claimed, since torch differentiates on no two kinds of device in one process: what
asks for this is skipped, and test_on_cuda.py has the same checks of the real one.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.utils import backend_registration as registration
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_map_only

NAME, PACKAGE = "emulated", "/lmbm_torch/"
WAITS = frozenset(
    {
        "_local_scalar_dense",
        "nonzero",
        "masked_select",
        "unique_dim",
        "_unique2",
        "unique_consecutive",
        "equal",
        "is_nonzero",
        "bincount",
        "histc",
        "multinomial",
        "repeat_interleave",
        "_linalg_eigh",
        "_linalg_svd",
        "_linalg_solve_ex",
        "linalg_cholesky_ex",
        "linalg_eigh",
    }
)
# They look at memory alone, or take some without writing to it.
FREE = frozenset(
    {
        "detach",
        "alias",
        "view",
        "_unsafe_view",
        "expand",
        "permute",
        "transpose",
        "t",
        "slice",
        "select",
        "unsqueeze",
        "squeeze",
        "as_strided",
        "unbind",
        "split",
        "split_with_sizes",
        "diagonal",
        "empty",
        "empty_like",
        "new_empty",
        "empty_strided",
        "new_empty_strided",
        "unfold",
        "lift_fresh",
    }
)
INDEXED = frozenset(["index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"])
COPIES = frozenset({"copy_", "_to_copy"})


if not torch.cuda.is_available():
    # Checkpointing asks for it.
    registration._DummyBackendModule.get_amp_supported_dtype = lambda self: [torch.bfloat16]
    # When this is imported: once torch has differentiated anything, its engine takes no further device.
    registration._setup_privateuseone_for_python_backend(NAME)
# Its name before it is claimed.
DEVICE = torch.device("privateuseone", 0)


class OnDevice(Tensor):
    """A tensor of the CPU, ``here``, that claims to be on the device."""

    here: Tensor

    @staticmethod
    def __new__(cls, here: Tensor) -> OnDevice:
        made: Any = Tensor._make_wrapper_subclass(
            cls,
            here.size(),
            strides=here.stride(),
            storage_offset=here.storage_offset(),
            dtype=here.dtype,
            layout=here.layout,
            device=DEVICE,
        )
        made.here = here
        return made

    def tolist(self) -> Any:
        return self.detach().cpu().tolist()

    # Lightning and optimizers replace it.
    data = property(Tensor.detach, lambda self, value: setattr(self, "here", value.here))

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return _run(func, args, kwargs or {}, None)


class Accelerator(TorchDispatchMode):
    """Meanwhile what is asked for on the device is made there, and what happens is recorded."""

    def __init__(self) -> None:
        if torch.cuda.is_available():
            pytest.skip("there is a CUDA device, which test_on_cuda.py checks")
        super().__init__()
        self.violations: list[tuple[str, str, str]] = []
        self.waits: Counter[str] = Counter()
        self.uploads: Counter[str] = Counter()
        self.launches: Counter[str] = Counter()
        self._generators: list[torch.Generator] = []

    def put(self, value: Any) -> Any:
        """A copy on the device of a tensor, or of a record, list or tuple of them, made anew there."""
        return moved(value, lambda tensor: OnDevice(tensor.detach().clone()))

    def forget(self) -> None:
        """Begin to count anew."""
        for counter in (self.waits, self.uploads, self.launches):
            counter.clear()

    def is_known(self, generator: torch.Generator) -> bool:
        """Whether it was made on the device."""
        # torch hands operators a copy of it.
        return any(generator.get_state().equal(known.get_state()) for known in self._generators)

    def __enter__(self):
        # Else torch.tensor(…, device=…) copies without asking.
        self._lifted, self._generator = torch._C._only_lift_cpu_tensors(), torch.Generator
        torch._C._set_only_lift_cpu_tensors(True)
        torch.Generator = self._generator_type(torch.Generator)
        return super().__enter__()

    def __exit__(self, *error):
        torch._C._set_only_lift_cpu_tensors(self._lifted)
        torch.Generator = self._generator
        return super().__exit__(*error)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return _run(func, args, kwargs or {}, self)

    def _generator_type(self, real: type) -> type:
        """A class whose generators for the device draw on the host, and are known."""

        def new(cls, device="cpu"):
            made = real()
            if torch.device(device).type == NAME:
                self._generators.append(made)
            return made

        return type("Generator", (), {"__new__": new})


class _Call(NamedTuple):
    """An operator's call: its arguments, the tensors among them by place, and where it comes from."""

    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    device: list[OnDevice]
    host: list[Tensor]
    lands: bool
    where: str

    @property
    def name(self) -> str:
        return self.func.overloadpacket.__name__

    @property
    def indices(self) -> list[Tensor]:
        return [index for index in self.args[1] if index is not None] if self.name in INDEXED else []

    @property
    def uploaded_indices(self) -> list[Tensor]:
        """Those of the host, which CUDA copies."""
        if not (self.indices and isinstance(self.args[0], OnDevice)):
            return []
        return [index for index in self.indices if not isinstance(index, OnDevice)]


def moved(value: Any, move: Callable[[Tensor], Tensor]) -> Any:
    """A tensor moved, or a record, list or tuple of them, made anew."""
    if isinstance(value, Tensor):
        return move(value)
    if isinstance(value, list | tuple) and any(map(_holds_tensors, value)):
        each = [moved(each, move) for each in value]
        return type(value)._make(each) if hasattr(value, "_make") else type(value)(each)
    if not _holds_tensors(value):
        return value
    return replace(value, **{field.name: moved(getattr(value, field.name), move) for field in fields(value)})


def here(value: Any) -> Any:
    """The tensors of the CPU behind those of the device, in lists, tuples and dictionaries."""
    return tree_map_only(OnDevice, lambda tensor: tensor.here, value)


def _tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    """Those among an operator's arguments, and in lists and tuples among them."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


def _holds_tensors(value: Any) -> bool:
    return isinstance(value, Tensor) or (is_dataclass(value) and not isinstance(value, type))


def _run(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], log: Accelerator | None) -> Any:
    target, tensors = kwargs.get("device"), [*_tensors(args), *_tensors(kwargs.values())]
    device = [tensor for tensor in tensors if isinstance(tensor, OnDevice)]
    lands = bool(device) if target is None else torch.device(target).type == NAME
    if not (device or lands):
        return func(*args, **kwargs)
    host = [tensor for tensor in tensors if not isinstance(tensor, OnDevice)]
    if log is not None:
        _record(_Call(func, args, kwargs, device, host, lands, _where()), log)
    on_host = kwargs if target is None else {**kwargs, "device": torch.device("cpu")}
    found = func(*here(args), **here(on_host))
    if not lands:
        # A copy to the host shares no memory with the device.
        return found.clone() if device and func.overloadpacket.__name__ == "_to_copy" else found
    found = tree_map_only(Tensor, lambda t: t if isinstance(t, OnDevice) else OnDevice(t), found)
    if not func._schema.is_mutable:
        return found
    return args[0] if isinstance(found, Tensor) else return_and_correct_aliasing(func, args, kwargs, found)


def _record(call: _Call, log: Accelerator) -> None:
    if call.device and call.name not in COPIES and call.kwargs.get("device") is None:
        _check_places(call, log)
    event = f"{call.where} {str(call.func).removeprefix('aten.')}"
    into = call.args[0] if call.name == "copy_" else None
    comes = call.device and (not call.lands if call.name == "_to_copy" else isinstance(into, Tensor))
    comes = comes and not isinstance(into, OnDevice)
    goes = call.host and (call.lands if call.name == "_to_copy" else isinstance(into, OnDevice))
    if call.device and (call.name in WAITS or _has_masks(call) or comes):
        log.waits[event] += 1
    if goes or call.uploaded_indices:
        log.uploads[event] += 1
    if call.lands and call.name not in FREE:
        log.launches[call.where] += 1


def _check_places(call: _Call, log: Accelerator) -> None:
    """Note what CUDA would refuse among tensors of the device: those of the host, and its generators."""
    # It takes numbers of no dimension where it computes point by point, and indices of the host.
    takes_numbers = torch.Tag.pointwise in call.func.tags or call.name in {
        "where",
        "masked_fill",
        "fill_",
        *INDEXED,
    }
    others = [t for t in call.host if not any(t is index for index in call.uploaded_indices)]
    if wrong := [tuple(t.shape) for t in others if t.ndim or not takes_numbers]:
        rule = f"host tensor {wrong[0]} among device tensors"
        log.violations.append((rule, str(call.func), call.where))
    generator = call.kwargs.get("generator")
    if generator is not None and not log.is_known(generator):
        log.violations.append(("generator of the host", str(call.func), call.where))


def _has_masks(call: _Call) -> bool:
    """Whether the result's size, or what is written, depends on a mask's values."""
    writes_a_number = "put" in call.name and len(call.args) > 2 and call.args[2].numel() == 1
    return not writes_a_number and any(index.dtype == torch.bool for index in call.indices)


def _where() -> str:
    frame = sys._getframe(3)
    while frame is not None and PACKAGE not in frame.f_code.co_filename:
        frame = frame.f_back
    if frame is None:
        return "outside"
    return f"{frame.f_code.co_filename.rsplit(PACKAGE, 1)[1]}:{frame.f_lineno}"
