"""The uses of numba's private interface: a cache of machine code, and dispatchers with less to compile.

numba's own cache checks only the file of the function, so an inner loop changed in another file runs in the
old version; two processes that compile at once may exchange code; an unwritable folder or a damaged file
raises. Here every piece of code has a separate file, named by the hash of the package's sources, the versions
and the argument types, with a checksum compared before anything else is read. After any failure of a file or
folder the kernel is compiled. Files writable by other users are not read. :mod:`lmbm_torch.kernels.jit` works
without the module.
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
    """Return the hash of all files that kernels may be compiled from, and of the compilers' versions."""
    room = Path(__file__).parent
    digest = hashlib.sha256(f"{numba.__version__} {llvmlite.__version__}".encode())
    for path in sorted(room.rglob("*.py")):
        digest.update(str(path.relative_to(room)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


class KernelCache(caching.FunctionCache):
    """The cache of a compiled function: numba's protocol with different files."""

    def __init__(self, function: Callable) -> None:
        self._name = repr(function)
        self._py_func = function
        self._cache_file = _Files(function)
        self._cache_path = str(self._cache_file.folders[0])
        self.enable()

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Read code like numba, without imports and compilations that the stored code does not need."""
        try:
            _name_helpers()
            found = self._cache_file.load(self._index_key(sig, target_context.codegen()))
            return None if found is None else CompileResult._rebuild(target_context, *found)
        except Exception:
            # Code not usable by this computer or this release of numba, for whatever reason.
            return None

    def _save_overload(self, sig: Any, data: Any) -> None:
        # Code with addresses of the current process is useless to others.
        if self._enabled and not data.lifted and not data.library.has_dynamic_globals:
            self._cache_file.save(self._index_key(sig, data.codegen), data._reduce())


def _folders(file: Path) -> list[Path]:
    """Return the folders for machine code, the first choice first.

    Args:
        file: the function's source file; code is stored in the same folder, or else in a folder of the user.
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
    """The files with one function's code, for several argument types."""

    def __init__(self, function: Callable) -> None:
        code = function.__code__
        file = Path(code.co_filename).absolute()
        self.folders = _folders(file)
        # Users with write access to the source could change the kernel anyway.
        self._owners = {0, *(path.stat().st_uid for path in (file,) if path.exists())}
        if sys.platform != "win32":
            self._owners.add(os.geteuid())
        name = function.__qualname__.replace("<", "").replace(">", "")
        python = f"py{sys.version_info[0]}{sys.version_info[1]}{getattr(sys, 'abiflags', '')}"
        self._base = f"{file.stem}.{name}-{code.co_firstlineno}.{python}"

    def load(self, key: Any) -> Any:
        """Return the code of a key, or None without an intact file."""
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
        """Store the code of a key in the first usable folder; warn once without a usable folder."""
        content = dumps((self._name(key), key, data))
        for folder in self.folders:
            with suppress(OSError):
                folder.mkdir(parents=True, exist_ok=True, mode=0o755)
                if not self._is_own(folder.stat()):
                    _warn_of_others(folder)
                    continue
                # Overwriting another user's file would keep the owner's permissions.
                path = folder / self._name(key)
                if path.exists() and not self._is_own(path.stat()):
                    path.unlink()
                with replacing(path) as stream:
                    stream.write(hashlib.sha256(content).digest() + content)
                self._remove_stale(folder)
                return
        _warn_of_no_folder()

    def flush(self) -> None:
        """Remove the code of all keys."""
        for folder in self.folders:
            with suppress(OSError):
                for path in folder.glob(f"{self._base}.*{SUFFIX}"):
                    path.unlink()

    def _is_own(self, found: os.stat_result) -> bool:
        """Return whether only the user, the source's owner or root may write a file or folder.

        A group with the owner's number counts as the owner's own, because many systems create a group for
        each user.
        """
        if sys.platform == "win32":
            return True
        by_others = stat.S_IWOTH | (stat.S_IWGRP if found.st_gid != found.st_uid else 0)
        return found.st_uid in self._owners and not found.st_mode & by_others

    def _name(self, key: Any) -> str:
        return f"{self._base}.{sources()[:12]}.{hashlib.sha256(str(key).encode()).hexdigest()[:12]}{SUFFIX}"

    def _remove_stale(self, folder: Path) -> None:
        """Remove code compiled from other sources."""
        for path in folder.glob(f"{self._base}.*{SUFFIX}"):
            if not path.name.startswith(f"{self._base}.{sources()[:12]}."):
                path.unlink(missing_ok=True)


@cache
def _name_helpers() -> None:
    """Register the addresses of numba's C functions for creating and releasing arrays with the linker."""
    for name, address in _nrt_python.c_helpers.items():
        llvmlite.binding.add_symbol(name if name.startswith("_") else f"NRT_{name}", address)


class _Reader(pickle.Unpickler):
    """An unpickler that skips the numba modules present during compilation.

    The modules would take 30 ms to import, as globals of code for Python's own operations, unused in kernels.
    """

    def find_class(self, module: str, name: str) -> Any:
        found = super().find_class(module, name)
        return _environment if found is environment._rebuild_env else found


def _environment(module: str, constants: list[Any], name: str) -> environment.Environment:
    return environment._rebuild_env(module if module in sys.modules else numba.__name__, constants, name)


@cache
def _warn_of_no_folder() -> None:
    warnings.warn(
        "compiled code can be kept nowhere, so that every process compiles anew, for seconds up to a minute: "
        "let NUMBA_CACHE_DIR name a folder that can be written",
        RuntimeWarning,
        stacklevel=2,
    )


@cache
def _warn_of_others(folder: Path) -> None:
    warnings.warn(
        f"compiled code in {folder} is neither read nor kept, since others than you can write there: "
        "take the permission away (chmod go-w), or let NUMBA_CACHE_DIR name a folder of your own",
        RuntimeWarning,
        stacklevel=2,
    )


# Releases of numba (major.minor) with all kernel tests passed.
TRIED = {"0.68"}


def dispatcher(function: Callable, cache: bool, options: dict[str, Any]) -> Any:
    """Compile a function by ``numba.njit``, with code stored by :class:`KernelCache`."""
    made = numba.njit(**options)(function)
    resolve = made.get_call_template
    # Otherwise a kernel called with a constant is compiled anew for each value.
    made.get_call_template = lambda args, kws: resolve(
        tuple(map(unliteral, args)), {name: unliteral(each) for name, each in dict(kws).items()}
    )
    compile_now = made.compile

    def compile_at_once(sig: Any) -> Any:
        with uncollected():
            return compile_now(sig)

    made.compile = compile_at_once
    # numba would search all installed packages for argument types that no kernel has.
    made._compilation_chain_init_hook = lambda: None  # pyright: ignore[reportAttributeAccessIssue]
    if cache:
        made._cache = KernelCache(function)  # pyright: ignore[reportAttributeAccessIssue]
    return made


def part(function: Callable, options: dict[str, Any]) -> Any:
    """Compile a :func:`dispatcher` without the wrapper for calls from Python.

    Unpacking tuples of arrays for Python takes a sixth to a third of the compilation of short functions.
    """
    made = dispatcher(function, True, {**options, "no_cpython_wrapper": True, "no_cfunc_wrapper": True})
    # A part has no entry for calls from Python.
    made.add_overload = lambda compiled: made.overloads.update({tuple(compiled.signature.args): compiled})
    made._compile_for_args = partial(_refuse, function)
    return made


def _refuse(function: Callable, *args: Any, **kws: Any) -> None:
    raise TypeError(f"{function.__qualname__}: called from compiled code alone")


def check() -> None:
    """Check that an untried release of numba compiles, stores and reads code.

    Raises:
        RuntimeError: a wrong result, or code not read from the cache.
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
                    raise RuntimeError(f"expected 7.0 by code found {int(is_kept)} times, got {came}, {hits}")
        finally:
            numba.config.CACHE_DIR = chosen  # pyright: ignore[reportPrivateImportUsage, reportAttributeAccessIssue]


def _half(number):
    return number / 2
