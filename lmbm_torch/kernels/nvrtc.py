"""Compilation of CUDA source at run time by NVIDIA's NVRTC (part of PyTorch's CUDA build), and launches."""

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

# Names of the library, newest first. Wheels have it in the package `nvidia`, toolkits on the loader's path.
_NAMES = ("libnvrtc.so.13", "libnvrtc.so.12")
_PLACES = ("cu13/lib", "cuda_nvrtc/lib")
_INSTALL = "install PyTorch's CUDA build or, to compile alone, `pip install nvidia-cuda-nvrtc`"

_KEPT, _CHECKSUM = "kernel.cubin", hashlib.sha256().digest_size

_LOCAL_BYTES = 3  # CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES
_MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES


@cache
def library() -> ctypes.CDLL:
    """Load the library NVRTC.

    Raises:
        ImportError: NVRTC is not installed.
    """
    for path in _candidates():
        try:
            return ctypes.CDLL(path)
        except OSError:
            continue
    raise ImportError(f"expected NVRTC, which is not installed: {_INSTALL}")


@cache
def is_installed() -> bool:
    """Return whether :func:`library` finds NVRTC."""
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
    """Compile CUDA source for a compute capability such as 90.

    Returns:
        Machine code, and the report of the assembler ptxas.

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
    """Return machine code from Triton's cache folder if possible, else compile by :func:`compiled`.

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
        # There is no Triton, or no writable folder.
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
    """The C struct CUlaunchConfig: grid, block, dynamic shared memory, stream, attributes."""

    _fields_ = (
        *((f"{of}_{axis}", ctypes.c_uint) for of in ("grid", "block") for axis in "xyz"),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("num_attributes", ctypes.c_uint),
    )


class Kernel:
    """A kernel that is loaded on the current CUDA device.

    Args:
        code: machine code.
        name: name of the function in the source, declared ``extern "C"``.
        shared_bytes: bytes of dynamic shared memory of a block.

    Raises:
        RuntimeError: the CUDA driver refuses the code.
    """

    def __init__(self, code: bytes, name: str, shared_bytes: int) -> None:
        torch.cuda.init()
        # The first use of the device creates a context, without which calls of the driver fail.
        torch.cuda.current_stream().synchronize()
        self._driver = ctypes.CDLL("libcuda.so.1")
        self._shared_bytes = shared_bytes
        self._module, self._function = ctypes.c_void_p(), ctypes.c_void_p()
        self._do("cuModuleLoadData", ctypes.byref(self._module), code)
        self._do("cuModuleGetFunction", ctypes.byref(self._function), self._module, name.encode())
        self._do("cuFuncSetAttribute", self._function, _MAX_DYNAMIC_SHARED, shared_bytes)

    def active_clusters(self, blocks: int, threads: int) -> int:
        """Return how many clusters of the kernel can run at once, for a launch of ``blocks`` blocks.

        It may be below the multiprocessors' capacity, because blocks of a cluster must be close.
        """
        found, launch = (
            ctypes.c_int(),
            _Launch(blocks, 1, 1, threads, 1, 1, self._shared_bytes, None, None, 0),
        )
        self._do("cuOccupancyMaxActiveClusters", ctypes.byref(found), self._function, ctypes.byref(launch))
        return found.value

    def local_bytes(self) -> int:
        """Return the bytes of local memory of a thread, to which registers were spilled."""
        found = ctypes.c_int()
        self._do("cuFuncGetAttribute", ctypes.byref(found), _LOCAL_BYTES, self._function)
        return found.value

    def launch(self, blocks: int, threads: int, arguments: Sequence[Any]) -> None:
        """Launch the kernel on the current stream; tensors become addresses, numbers ``int`` or ``float``."""
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


def argument(value: Any) -> Any:
    """Convert a value to an argument of a kernel; pass numbers of ctypes for ``double`` and ``long long``."""
    if isinstance(value, ctypes.c_double | ctypes.c_longlong):
        return value
    if isinstance(value, Tensor):
        return ctypes.c_void_p(value.data_ptr())
    return ctypes.c_int(value) if isinstance(value, int) else ctypes.c_float(value)
