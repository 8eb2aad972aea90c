"""Machine code of what Python enters, and of nothing else.

numba optimises each function that it compiles, with all that it calls, and makes machine code of it; a
compiled caller links the function in, and does all of that once more. A kernel of twenty parts is made some
three times that way, a third of what its first call takes. Here a function is optimised, and becomes machine
code, when its address is asked for, which is what Python does. Of code from the disk, what a compiled caller
links in is read when there is one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from llvmlite.binding import parse_bitcode
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler_lock import global_compiler_lock
from numba.core.environment import lookup_environment
from numba.core.registry import cpu_target

# How numba names the pointers by which compiled code finds Python objects.
ENVIRONMENT = "_ZN08NumbaEnv"


class LinkedLibrary(JITCodeLibrary):
    """The code of one function, made machine code when a pointer into it is asked for."""

    _codegen: Any
    _is_made = False
    # Of code from the disk that no caller has been linked with.
    _bitcode: bytes | None = None

    def get_pointer_to_function(self, name: str) -> int:
        self._ensure_finalized()
        if not self._is_made:
            if all(function.name != name for function in self.get_defined_functions()):
                return 0
            self._make()
        return super().get_pointer_to_function(name)

    def serialize_using_object_code(self) -> tuple[str, str, Any]:
        if not self._is_made:
            return self.serialize_using_bitcode()
        name, kind, codes = super().serialize_using_object_code()
        module = self._get_module_for_linking()
        parts = [*module.functions, *module.global_variables]
        return name, kind, (*codes, {part.name for part in parts if not part.is_declaration})

    @classmethod
    def _unserialize(cls, codegen: Any, state: tuple[str, str, Any]) -> Any:
        name, kind, codes = state
        if kind != "object":
            return super()._unserialize(codegen, state)
        library = codegen.create_library(name)
        machine_code, library._bitcode, symbols = codes
        library.enable_object_caching()
        library._set_compiled_object(machine_code)
        library._finalize_final_module()
        codegen._engine._defined_symbols |= symbols
        return library

    def _get_module_for_linking(self) -> Any:
        if self._bitcode is not None:
            self._shared_module, self._bitcode = parse_bitcode(self._bitcode), None
        return super()._get_module_for_linking()

    def _optimize_functions(self, ll_module: Any) -> None:
        """With little effort, to keep their code short: they are optimised again with what they call."""
        ll_module.data_layout = self._codegen._data_layout
        for function in ll_module.functions:
            if not function.is_declaration:
                passes, builder = self._codegen._function_pass_manager(opt=1)
                passes.run(function, builder)

    def _optimize_final_module(self) -> None:
        """Later, in :meth:`_make`."""

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._verify_declare_only_symbols()
        self._finalized = True
        # Machine code from the disk is there already.
        if self._object_caching_enabled and self._compiled_object:
            self._enter()

    def _make(self) -> None:
        super()._optimize_final_module()
        self._enter()

    def _enter(self) -> None:
        self._is_made = True
        super()._finalize_final_module()
        # What was linked in had nowhere to put its pointers when it was compiled.
        for name in (variable.name for variable in self._final_module.global_variables):
            environment = lookup_environment(name) if name.startswith(ENVIRONMENT) else None
            if environment is not None:
                self._codegen.set_env(name, environment)


@contextmanager
def linked() -> Iterator[None]:
    """Within it, numba compiles into a :class:`LinkedLibrary` each; what others compile stays theirs."""
    target: Any = cpu_target.target_context
    codegen = target.codegen()
    with global_compiler_lock:
        if "_library_class" in vars(codegen):
            yield
            return
        set_now = codegen.set_env

        def set_env(name: str, environment: Any) -> None:
            if codegen._engine.is_symbol_defined(name):
                set_now(name, environment)

        codegen._library_class, codegen.set_env = LinkedLibrary, set_env
        try:
            yield
        finally:
            del codegen._library_class, codegen.set_env
