"""Machine code of compiled kernels, kept on the disk by all that it was compiled from.

numba's own cache looks at the file of the function alone, so that an inner loop changed in another file
runs as it was; two processes that compile at once may exchange their code; and where it can write nowhere, or
meets a damaged file, it raises. Here every piece of code has a file of its own, named by the hash of this
package's sources, of the versions and of the types of the arguments, with a checksum that is compared before
the rest is read. Whatever is wrong with a file or a folder, the kernel is compiled.
"""

from __future__ import annotations

import hashlib
import io
import pickle
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import llvmlite.binding
import numba
from numba.core import caching, config, environment
from numba.core.runtime import _nrt_python  # pyright: ignore[reportAttributeAccessIssue]  # compiled
from numba.core.serialize import dumps

from lmbm_torch.files import replacing

SUFFIX = ".kernel"
_DIGEST = hashlib.sha256().digest_size


@cache
def sources() -> str:
    """The hash of every file that a kernel may be compiled from, and of the compilers' versions."""
    room = Path(__file__).parent
    digest = hashlib.sha256(f"{numba.__version__} {llvmlite.__version__}".encode())
    for path in sorted(room.rglob("*.py")):
        digest.update(str(path.relative_to(room)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


class KernelCache(caching.FunctionCache):
    """The cache of a compiled function: numba's protocol, other files."""

    def __init__(self, function: Callable) -> None:
        self._name = repr(function)
        self._py_func = function
        self._impl = _Codes(function)
        self._cache_file = _Files(_folders(function), self._impl.filename_base)
        self._cache_path = str(self._cache_file.folders[0])
        self.enable()

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """As numba's, which also loads and compiles much that no code that is there asks for."""
        _name_helpers()
        return self._load_overload(sig, target_context)

    def _load_overload(self, sig: Any, target_context: Any) -> Any:
        try:
            return super()._load_overload(sig, target_context)
        except Exception:
            # Code that this machine or this numba cannot use, for whichever reason of theirs.
            return None

    def _save_overload(self, sig: Any, data: Any) -> None:
        if self._enabled and self._impl.check_cachable(data):
            self._cache_file.save(self._index_key(sig, data.codegen), self._impl.reduce(data))


class _Codes(caching.CompileResultCacheImpl):
    """How numba serialises code; where it goes is up to :class:`_Files`."""

    def __init__(self, function: Callable) -> None:
        code = function.__code__
        self._lineno = code.co_firstlineno
        # Where a warning of numba's says that code cannot be kept.
        self._locator = caching.InTreeCacheLocator(function, code.co_filename)
        name = f"{Path(code.co_filename).stem}.{function.__qualname__}"
        self._filename_base = self.get_filename_base(name, "")


def _folders(function: Callable) -> list[Path]:
    """Where code may be kept, in order: as numba's own, but also read where nothing can be written."""
    file = function.__code__.co_filename
    locators = [caching.InTreeCacheLocator, caching.UserWideCacheLocator]
    if config.CACHE_DIR:  # pyright: ignore[reportAttributeAccessIssue]  # set from the environment
        locators.insert(0, caching.UserProvidedCacheLocator)
    return [Path(locator(function, file).get_cache_path()) for locator in locators]


class _Files:
    """The codes of one function, for several types of arguments."""

    def __init__(self, folders: list[Path], base: str) -> None:
        self.folders = folders
        self._base = base

    def load(self, key: Any) -> Any:
        """The code of a key, or None where there is none, or none that is whole."""
        for folder in self.folders:
            with suppress(OSError):
                content = (folder / self._name(key)).read_bytes()
                if hashlib.sha256(content[_DIGEST:]).digest() == content[:_DIGEST]:
                    name, stored, data = _Reader(io.BytesIO(content[_DIGEST:])).load()
                    if (name, stored) == (self._name(key), key):
                        return data
        return None

    def save(self, key: Any, data: Any) -> None:
        """Keep the code of a key in the first folder that takes it; warn, once, if none does."""
        content = dumps((self._name(key), key, data))
        for folder in self.folders:
            with suppress(OSError):
                folder.mkdir(parents=True, exist_ok=True)
                with replacing(folder / self._name(key)) as stream:
                    stream.write(hashlib.sha256(content).digest() + content)
                self._remove_stale(folder)
                return
        _warn_of_no_folder()

    def flush(self) -> None:
        """Forget the codes of all keys."""
        for folder in self.folders:
            with suppress(OSError):
                for path in folder.glob(f"{self._base}.*{SUFFIX}"):
                    path.unlink()

    def _name(self, key: Any) -> str:
        return f"{self._base}.{sources()[:12]}.{hashlib.sha256(str(key).encode()).hexdigest()[:12]}{SUFFIX}"

    def _remove_stale(self, folder: Path) -> None:
        """Remove what was compiled from other sources, which nobody asks for again."""
        for path in folder.glob(f"{self._base}.*{SUFFIX}"):
            if not path.name.startswith(f"{self._base}.{sources()[:12]}."):
                path.unlink(missing_ok=True)


@cache
def _name_helpers() -> None:
    """Tell the linker where numba's functions in C are that arrays are made and left with."""
    for name, address in _nrt_python.c_helpers.items():
        llvmlite.binding.add_symbol(name if name.startswith("_") else f"NRT_{name}", address)


class _Reader(pickle.Unpickler):
    """Reads code without numba's own modules that it was compiled with.

    They would be imported, for 30 ms, to be the globals of what is compiled to Python's own operations, which
    no kernel is.
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
