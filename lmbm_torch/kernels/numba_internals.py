"""Code on numba's private interface: a cache of machine code, and faster compilation.

numba's own cache checks only the file of a function, and ignores changes in other files; two processes that
compile at the same time may mix up code; and an unwritable folder or a damaged file raises. Here, the code of
each function and argument types has a file of its own, named by the hash of the package's sources and
versions, and its checksum is compared before anything else is read. If reading fails, the kernel is compiled.
Files that other users can write are not read. :mod:`lmbm_torch.kernels.jit` can do without.
"""

from __future__ import annotations

import hashlib
import io
import os
import pickle
import stat
import sys
import tempfile
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

import llvmlite.binding
import numba
import numpy as np
from numba.core import caching, environment
from numba.core.compiler import CompileResult
from numba.core.runtime import _nrt_python  # pyright: ignore[reportAttributeAccessIssue]  # compiled
from numba.core.serialize import dumps
from numba.core.types import unliteral

from lmbm_torch.extras import uncollected
from lmbm_torch.files import replacing

SUFFIX = ".kernel"
_DIGEST = hashlib.sha256().digest_size


@cache
def sources() -> str:
    """Return the hash of all source files of kernels, and of the versions of the compilers."""
    room = Path(__file__).parent
    digest = hashlib.sha256(f"{numba.__version__} {llvmlite.__version__}".encode())
    for path in sorted(room.rglob("*.py")):
        digest.update(str(path.relative_to(room)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


class KernelCache(caching.FunctionCache):
    """The cache of a compiled function, with numba's interface but different files."""

    def __init__(self, function: Callable) -> None:
        self._name = repr(function)
        self._py_func = function
        self._cache_file = _Files(function)
        self._cache_path = str(self._cache_file.folders[0])
        self.enable()

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Read stored code, without imports and compilations that numba would add."""
        try:
            _name_helpers()
            found = self._cache_file.load(self._index_key(sig, target_context.codegen()))
            return None if found is None else CompileResult._rebuild(target_context, *found)
        except Exception:
            # The stored code does not fit this computer or this version of numba: compile again.
            return None

    def _save_overload(self, sig: Any, data: Any) -> None:
        # Code that contains addresses of the current process cannot be used by other processes.
        if self._enabled and not data.lifted and not data.library.has_dynamic_globals:
            self._cache_file.save(self._index_key(sig, data.codegen), data._reduce())


def _folders(file: Path) -> list[Path]:
    """Return possible folders for machine code, the preferred folder first.

    Args:
        file: source file of the function, beside which the first folder is; the last belongs to the user.
    """
    within = f"{file.parent.name}_{hashlib.sha256(str(file.parent).encode()).hexdigest()[:16]}"
    if sys.platform == "win32":
        home = os.environ.get("LOCALAPPDATA", "~/AppData/Local")
    else:
        default = "~/Library/Caches" if sys.platform == "darwin" else "~/.cache"
        home = os.environ.get("XDG_CACHE_HOME", default)
    chosen: str = numba.config.CACHE_DIR  # pyright: ignore[reportPrivateImportUsage, reportAttributeAccessIssue]  # of NUMBA_CACHE_DIR
    return [
        *([Path(chosen) / within] if chosen else []),
        file.parent / "__pycache__",
        Path(home).expanduser() / "lmbm_torch" / within,
    ]


class _Files:
    """The files with the code of a function, one for each combination of argument types."""

    def __init__(self, function: Callable) -> None:
        code = function.__code__
        file = Path(code.co_filename).absolute()
        self.folders = _folders(file)
        # The owner of the source file is trusted, because this user could change the kernel anyway.
        self._owners = {0, *(path.stat().st_uid for path in (file,) if path.exists())}
        if sys.platform != "win32":
            self._owners.add(os.geteuid())
        name = function.__qualname__.replace("<", "").replace(">", "")
        python = f"py{sys.version_info[0]}{sys.version_info[1]}{getattr(sys, 'abiflags', '')}"
        self._base = f"{file.stem}.{name}-{code.co_firstlineno}.{python}"

    def load(self, key: Any) -> Any:
        """Return the code for a key; None if there is no intact file."""
        for folder in self.folders:
            with suppress(OSError), (folder / self._name(key)).open("rb") as stream:
                if not (self._is_own(folder.stat()) and self._is_own(os.fstat(stream.fileno()))):
                    _warn_of_others(folder)
                    continue
                content = stream.read()
                if hashlib.sha256(content[_DIGEST:]).digest() == content[:_DIGEST]:
                    name, stored, data = _Reader(io.BytesIO(content[_DIGEST:])).load()
                    if (name, stored) == (self._name(key), key):
                        return data
        return None

    def save(self, key: Any, data: Any) -> None:
        """Store the code for a key in the first usable folder; if no folder is usable, warn once."""
        content = dumps((self._name(key), key, data))
        for folder in self.folders:
            with suppress(OSError):
                folder.mkdir(parents=True, exist_ok=True, mode=0o755)
                if not self._is_own(folder.stat()):
                    _warn_of_others(folder)
                    continue
                # Remove an older file first, because overwriting would keep its owner's permissions.
                path = folder / self._name(key)
                if path.exists() and not self._is_own(path.stat()):
                    path.unlink()
                with replacing(path) as stream:
                    stream.write(hashlib.sha256(content).digest() + content)
                self._remove_stale(folder)
                return
        _warn_of_no_folder()

    def flush(self) -> None:
        """Remove the code for all keys."""
        for folder in self.folders:
            with suppress(OSError):
                for path in folder.glob(f"{self._base}.*{SUFFIX}"):
                    path.unlink()

    def _is_own(self, found: os.stat_result) -> bool:
        """Return whether only the user, the owner of the source or root can write a file or folder.

        A group with the number of the owner is trusted, because many systems create a group for each user.
        """
        if sys.platform == "win32":
            return True
        by_others = stat.S_IWOTH | (stat.S_IWGRP if found.st_gid != found.st_uid else 0)
        return found.st_uid in self._owners and not found.st_mode & by_others

    def _name(self, key: Any) -> str:
        return f"{self._base}.{sources()[:12]}.{hashlib.sha256(str(key).encode()).hexdigest()[:12]}{SUFFIX}"

    def _remove_stale(self, folder: Path) -> None:
        """Remove code that was compiled from other versions of the sources."""
        for path in folder.glob(f"{self._base}.*{SUFFIX}"):
            if not path.name.startswith(f"{self._base}.{sources()[:12]}."):
                path.unlink(missing_ok=True)


@cache
def _name_helpers() -> None:
    """Tell the linker the addresses of numba's C functions that create and release arrays."""
    for name, address in _nrt_python.c_helpers.items():
        llvmlite.binding.add_symbol(name if name.startswith("_") else f"NRT_{name}", address)


class _Reader(pickle.Unpickler):
    """An unpickler that does not import the modules of numba that only compilation needs.

    Their import would take 30 ms.
    """

    def find_class(self, module: str, name: str) -> Any:
        found = super().find_class(module, name)
        return _environment if found is environment._rebuild_env else found


def _environment(module: str, constants: list[Any], name: str) -> environment.Environment:
    return environment._rebuild_env(module if module in sys.modules else numba.__name__, constants, name)


@cache
def _warn_of_no_folder() -> None:
    warnings.warn(
        "no folder for compiled code is writable, so every process compiles for up to a minute; set "
        "NUMBA_CACHE_DIR to a writable folder",
        RuntimeWarning,
        stacklevel=2,
    )


@cache
def _warn_of_others(folder: Path) -> None:
    warnings.warn(
        f"compiled code in {folder} is neither read nor kept, because other users can write there; run "
        "chmod go-w on the folder, or set NUMBA_CACHE_DIR to a folder of your own",
        RuntimeWarning,
        stacklevel=2,
    )


# Versions of numba (major.minor) with which all tests of kernels have passed.
TRIED = {"0.68"}


def dispatcher(function: Callable, cache: bool, options: dict[str, Any]) -> Any:
    """Compile a function by ``numba.njit``, with code stored by :class:`KernelCache`."""
    made = numba.njit(**options)(function)
    resolve = made.get_call_template
    # Constants count as numbers; otherwise a kernel would be compiled for each constant.
    made.get_call_template = lambda args, kws: resolve(
        tuple(map(unliteral, args)), {name: unliteral(each) for name, each in dict(kws).items()}
    )
    compile_now = made.compile

    def compile_at_once(sig: Any) -> Any:
        with uncollected():
            return compile_now(sig)

    made.compile = compile_at_once
    # Skip numba's search in all installed packages for extensions, which kernels do not use.
    made._compilation_chain_init_hook = lambda: None  # pyright: ignore[reportAttributeAccessIssue]
    if cache:
        made._cache = KernelCache(function)  # pyright: ignore[reportAttributeAccessIssue]
    return made


def part(function: Callable, options: dict[str, Any]) -> Any:
    """Compile a :func:`dispatcher` without the wrapper for calls from Python.

    The wrapper unpacks tuples of arrays, which takes up to a third of the compilation of short functions.
    """
    made = dispatcher(function, True, {**options, "no_cpython_wrapper": True, "no_cfunc_wrapper": True})
    # Register the code without an entry point for calls from Python.
    made.add_overload = lambda compiled: made.overloads.update({tuple(compiled.signature.args): compiled})
    made._compile_for_args = partial(_refuse, function)
    return made


def _refuse(function: Callable, *args: Any, **kws: Any) -> None:
    raise TypeError(f"{function.__qualname__}: expected a call from compiled code, got a call from Python")


def check() -> None:
    """Check that an untested version of numba compiles, stores and reads code.

    Raises:
        RuntimeError: a result is wrong, or code was not read from the cache.
    """
    if ".".join(numba.__version__.split(".")[:2]) in TRIED:
        return
    chosen = numba.config.CACHE_DIR  # pyright: ignore[reportPrivateImportUsage, reportAttributeAccessIssue]  # of NUMBA_CACHE_DIR
    with tempfile.TemporaryDirectory() as folder:
        numba.config.CACHE_DIR = folder  # pyright: ignore[reportPrivateImportUsage, reportAttributeAccessIssue]
        try:
            half = part(_half, {})

            def quarters(values):
                return half(half(values.sum()))

            for is_kept in (False, True):
                kernel = dispatcher(quarters, True, {"nogil": True, "error_model": "numpy"})
                came, hits = kernel(np.arange(8.0)), sum(kernel.stats.cache_hits.values())
                if came != 7.0 or bool(hits) != is_kept:
                    raise RuntimeError(f"expected 7.0, code read {int(is_kept)} times, got {came}, {hits}")
        finally:
            numba.config.CACHE_DIR = chosen  # pyright: ignore[reportPrivateImportUsage, reportAttributeAccessIssue]


def _half(number):
    return number / 2
