"""The base class of all classes whose instances can be stored in files.

A file contains the name of a class of the library, or the import path of an already imported class: reading a
file never imports a module outside of the library.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from importlib import import_module
from typing import Any, Self

LIBRARY = "lmbm_torch."
# Modules of this library to import if a file names a class that is not imported yet: for the class Predictor
# its module; for all other classes the packages "models", then "estimators".
_PREDICTORS = {"Predictor": "prediction.predictor"}
_ROOMS = ("models", "estimators")


@dataclass(frozen=True)
class Given:
    """Arguments that a file cannot hold, and that the caller of :func:`~lmbm_torch.load` passes.

    Args:
        encoder: for a model saved with an encoder, a module with the same architecture, or a function that
            returns this module; without an encoder in the file the function is not called.
        decoder: a function that returns the decoder, if the file holds only the import path.
        device: the device of estimators.
    """

    encoder: Any = None
    decoder: Callable[[], Any] | None = None
    device: str = "cpu"


class Stored:
    """Base class for classes whose instances can be stored in files; by default, all dataclass fields are."""

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
        """Return the arguments of :meth:`from_parts` by name, as values that files can hold."""
        found: Any = self
        return {field.name: getattr(self, field.name) for field in fields(found)}

    @classmethod
    def from_parts(cls, given: Given, **parts: Any) -> Any:
        """Build an instance from :meth:`stored_parts`."""
        return cls(**parts)


@dataclass(frozen=True)
class Kind:
    """A class whose instances can be stored in files.

    Args:
        name: the name of the class in files.
        parts: function from an instance to the arguments of ``build`` by name.
        build: function from a :class:`Given` and these arguments to an instance.
    """

    name: str
    parts: Callable[[Any], dict[str, Any]]
    build: Callable[..., Any]


_ADAPTED: dict[type, Kind] = {}


def adapt(kind: type, parts: Callable[[Any], dict[str, Any]], build: Callable[..., Any]) -> None:
    """Register a class of another library, whose instances files can hold; arguments: see :class:`Kind`."""
    _ADAPTED[kind] = Kind(kind.__name__, parts, build)


def kind_of(value: Any) -> Kind | None:
    """Return the kind of an instance; None for an instance of a class that files cannot hold."""
    found = type(value)
    if issubclass(found, Stored):
        return Kind(found.stored_name(), found.stored_parts, found.from_parts)
    if found not in _ADAPTED and hasattr(value, "fit"):
        # Import the module that registers scikit-learn's transformers by ``adapt``.
        import_module(f"{LIBRARY}estimators.common.saving")
    return _ADAPTED.get(found)


def kind_named(name: str) -> Kind:
    """Return the :class:`Kind` with the name that a file gives to a class.

    Raises:
        ValueError: no imported class has the name.
    """
    for _ in _importing(name):
        # Search backwards: if a class is defined again, as in a notebook, the last definition is used.
        for each in reversed([*Stored.stored_classes()]):
            if each.stored_name() == name:
                return Kind(name, each.stored_parts, each.from_parts)
        for kind in _ADAPTED.values():
            if kind.name == name:
                return kind
    raise ValueError(
        f"expected a class of lmbm_torch or an imported class, got {name}; trust a class of your own by name "
        "(--trust NAME, or trust=[NAME])"
    )


def _importing(name: str) -> Iterator[None]:
    """Import one module after another in which a class may be defined, the fastest imports first."""
    yield
    if name in _PREDICTORS:
        import_module(LIBRARY + _PREDICTORS[name])
        yield
    for room in _ROOMS:
        package = import_module(LIBRARY + room)
        # Import only the class of this name first; import all classes only if that was not enough.
        getattr(package, name, None)
        yield
        for each in package.__all__:
            getattr(package, each)
        yield
