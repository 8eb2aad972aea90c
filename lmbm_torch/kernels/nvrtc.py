"""CUDA source compiled at run time by NVIDIA's NVRTC, which comes with PyTorch's CUDA build, and launched."""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

# The newest first. A wheel keeps them below the package `nvidia`, a toolkit where the system's loader looks.
_NAMES = ("libnvrtc.so.13", "libnvrtc.so.12")
_PLACES = ("cu13/lib", "cuda_nvrtc/lib")
_INSTALL = "install PyTorch's CUDA build or, to compile alone, `pip install nvidia-cuda-nvrtc`"

_KEPT, _CHECKSUM = "kernel.cubin", hashlib.sha256().digest_size

_LOCAL_BYTES = 3  # CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES
_MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES


@cache
def library() -> ctypes.CDLL:
    """NVRTC.

    Raises:
        ImportError: it is not installed.
    """
    for path in _candidates():
        try:
            return ctypes.CDLL(path)
        except OSError:
            continue
    raise ImportError(f"NVRTC is not installed: {_INSTALL}")


@cache
def is_installed() -> bool:
    """Whether :func:`library` finds it."""
    try:
        library()
    except ImportError:
        return False
    return True


def _candidates() -> Iterator[str]:
    spec = find_spec("nvidia")
    for folder in () if spec is None else spec.submodule_search_locations or ():
        for place in _PLACES:
            for name in _NAMES:
                path = Path(folder) / place / name
                if path.exists():
                    yield str(path)
    yield from _NAMES


def compiled(source: str, capability: int) -> tuple[bytes, str]:
    """Machine code of CUDA source, for devices of a compute capability such as 90, and ptxas' report on it.

    Raises:
        ImportError: NVRTC is not installed.
        RuntimeError: the source does not compile.
    """
    nvrtc, program = library(), ctypes.c_void_p()
    _check(nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernel.cu", 0, None, None))
    try:
        options = [b"--gpu-architecture=sm_%d" % capability, b"--std=c++17", b"--ptxas-options=-v"]
        failed = nvrtc.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
        report = _read(program, "ProgramLog").rstrip(b"\0").decode()
        if failed:
            raise RuntimeError(f"NVRTC could not compile a kernel: {report}")
        return _read(program, "CUBIN"), report
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def kept(source: str, capability: int) -> bytes:
    """Machine code as from :func:`compiled`, from Triton's folder of such code where it has been kept there.

    Raises:
        ImportError: NVRTC is not installed.
        RuntimeError: the source does not compile.
    """
    major, minor = ctypes.c_int(), ctypes.c_int()
    _check(library().nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)))
    made_from = f"{source}\0{capability}\0{major.value}.{minor.value}"
    key = hashlib.sha256(made_from.encode()).hexdigest()
    try:
        folder = import_module("triton.runtime.cache").get_cache_manager(key)
    except (ImportError, OSError):
        # No Triton, or no folder that can be written.
        return compiled(source, capability)[0]
    if (path := folder.get_file(_KEPT)) is not None:
        whole = Path(path).read_bytes()
        code, checksum = whole[:-_CHECKSUM], whole[-_CHECKSUM:]
        if hashlib.sha256(code).digest() == checksum:
            return code
    code, _ = compiled(source, capability)
    with suppress(OSError):
        folder.put(code + hashlib.sha256(code).digest(), _KEPT, binary=True)
    return code


def _read(program: ctypes.c_void_p, what: str) -> bytes:
    size = ctypes.c_size_t()
    _check(getattr(library(), f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
    content = ctypes.create_string_buffer(size.value)
    _check(getattr(library(), f"nvrtcGet{what}")(program, content))
    return content.raw


def _check(error: int) -> None:
    if error:
        library().nvrtcGetErrorString.restype = ctypes.c_char_p
        raise RuntimeError(f"NVRTC: {library().nvrtcGetErrorString(error).decode()}")


class _Launch(ctypes.Structure):
    """CUlaunchConfig: the grid, a block, its dynamic shared memory, the stream, attributes."""

    _fields_ = (
        *((f"{of}_{axis}", ctypes.c_uint) for of in ("grid", "block") for axis in "xyz"),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("num_attributes", ctypes.c_uint),
    )


class Kernel:
    """A kernel in the context of the current CUDA device.

    Args:
        code: its machine code.
        name: its name in the source, which declares it ``extern "C"``.
        shared_bytes: dynamic shared memory of a block.

    Raises:
        RuntimeError: what CUDA's driver says of the code.
    """

    def __init__(self, code: bytes, name: str, shared_bytes: int) -> None:
        torch.cuda.init()
        # A context must be there before a driver's call.
        torch.cuda.current_stream().synchronize()
        self._driver = ctypes.CDLL("libcuda.so.1")
        self._shared_bytes = shared_bytes
        self._module, self._function = ctypes.c_void_p(), ctypes.c_void_p()
        self._do("cuModuleLoadData", ctypes.byref(self._module), code)
        self._do("cuModuleGetFunction", ctypes.byref(self._function), self._module, name.encode())
        self._do("cuFuncSetAttribute", self._function, _MAX_DYNAMIC_SHARED, shared_bytes)

    def active_clusters(self, blocks: int, threads: int) -> int:
        """Clusters of the kernel that the device has room for at once, from ``blocks`` that are launched.

        Not as many as its multiprocessors have room for: those of a cluster are neighbours.
        """
        found, launch = (
            ctypes.c_int(),
            _Launch(blocks, 1, 1, threads, 1, 1, self._shared_bytes, None, None, 0),
        )
        self._do("cuOccupancyMaxActiveClusters", ctypes.byref(found), self._function, ctypes.byref(launch))
        return found.value

    def local_bytes(self) -> int:
        """Bytes of memory beside its registers that a thread has: of what was spilled."""
        found = ctypes.c_int()
        self._do("cuFuncGetAttribute", ctypes.byref(found), _LOCAL_BYTES, self._function)
        return found.value

    def launch(self, blocks: int, threads: int, arguments: Sequence[Tensor | int | float]) -> None:
        """Launch on the current stream; a tensor is its address, an int an ``int``, a float a ``float``."""
        values: list[Any] = [argument(value) for value in arguments]
        places = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        self._do(
            "cuLaunchKernel",
            *(self._function, blocks, 1, 1, threads, 1, 1, self._shared_bytes, stream, places, None),
        )

    def _do(self, name: str, *arguments: Any) -> None:
        if error := getattr(self._driver, name)(*arguments):
            message = ctypes.c_char_p()
            self._driver.cuGetErrorString(error, ctypes.byref(message))
            raise RuntimeError(f"{name}: {(message.value or b'unknown error').decode()}")


def argument(value: Tensor | int | float) -> Any:
    """As a kernel takes it."""
    if isinstance(value, Tensor):
        return ctypes.c_void_p(value.data_ptr())
    return ctypes.c_int(value) if isinstance(value, int) else ctypes.c_float(value)
