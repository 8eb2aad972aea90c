"""Base class of everything in files, and the arguments that a file leaves to the reader.

A class is named in files by the name in this library, or else by the import path. Only instances of imported
classes are rebuilt: reading a file never imports a module outside this library.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from importlib import import_module
from typing import Any, Self

LIBRARY = "lmbm_torch."
# Modules of this library that are imported if a file names a class that no imported module defines: those of
# predictors by name, and for all other names two, the lighter one first.
_PREDICTORS = {"Predictor": "prediction.predictor"}
_ROOMS = ("models", "estimators")


@dataclass(frozen=True)
class Given:
    """Arguments that a file leaves to the reader.

    Args:
        encoder: a module of the training's architecture for a model saved with an encoder, or a function for
            the module; models without an encoder do not call the function.
        decoder: a function for the decoder of a model whose file holds an import path alone.
        device: the device of estimators.
    """

    encoder: Any = None
    decoder: Callable[[], Any] | None = None
    device: str = "cpu"


class Stored:
    """A class with instances in files; by default a dataclass, of all fields."""

    @classmethod
    def stored_name(cls) -> str:
        """Return the name of the class in files."""
        own = cls.__module__.startswith(LIBRARY)
        return cls.__qualname__ if own else f"{cls.__module__}.{cls.__qualname__}"

    @classmethod
    def stored_classes(cls) -> Iterator[type[Self]]:
        """Yield all imported subclasses."""
        for each in cls.__subclasses__():
            yield each
            yield from each.stored_classes()

    def check_stored(self) -> None:
        """Raise an exception if no file can hold the instance."""

    def stored_parts(self) -> dict[str, Any]:
        """Return the arguments of :meth:`from_parts` by name, in values that files hold."""
        found: Any = self
        return {field.name: getattr(self, field.name) for field in fields(found)}

    @classmethod
    def from_parts(cls, given: Given, **parts: Any) -> Any:
        """Return the instance of :meth:`stored_parts`."""
        return cls(**parts)


@dataclass(frozen=True)
class Kind:
    """A class that files can hold.

    Args:
        name: the name of the class in files.
        parts: an instance → the arguments of ``build`` by name.
        build: a :class:`Given` and the arguments → an instance.
    """

    name: str
    parts: Callable[[Any], dict[str, Any]]
    build: Callable[..., Any]


_ADAPTED: dict[type, Kind] = {}


def adapt(kind: type, parts: Callable[[Any], dict[str, Any]], build: Callable[..., Any]) -> None:
    """Let files hold instances of a class of another library; for arguments see :class:`Kind`."""
    _ADAPTED[kind] = Kind(kind.__name__, parts, build)


def kind_of(value: Any) -> Kind | None:
    """Return the kind of an instance; None for an instance of a class that files cannot hold."""
    found = type(value)
    if issubclass(found, Stored):
        return Kind(found.stored_name(), found.stored_parts, found.from_parts)
    if found not in _ADAPTED and hasattr(value, "fit"):
        # Transformers are adapted beside the estimators.
        import_module(f"{LIBRARY}estimators.common.saving")
    return _ADAPTED.get(found)


def kind_named(name: str) -> Kind:
    """Return the kind of a name in a file.

    Raises:
        ValueError: no imported class has the name.
    """
    for _ in _importing(name):
        # Of a class that is defined again, as in a notebook, the last definition counts.
        for each in reversed([*Stored.stored_classes()]):
            if each.stored_name() == name:
                return Kind(name, each.stored_parts, each.from_parts)
        for kind in _ADAPTED.values():
            if kind.name == name:
                return kind
    raise ValueError(
        f"expected a class of lmbm_torch or an imported class, got {name}; trusting a class of your own by "
        "name imports the class (--trust NAME, or trust=[NAME])"
    )


def _importing(name: str) -> Iterator[None]:
    """Import the modules with the classes of files, step by step, lighter modules first."""
    yield
    if name in _PREDICTORS:
        import_module(LIBRARY + _PREDICTORS[name])
        yield
    for room in _ROOMS:
        package = import_module(LIBRARY + room)
        # Of estimators the named one; all of them only if none has the name.
        getattr(package, name, None)
        yield
        for each in package.__all__:
            getattr(package, each)
        yield
