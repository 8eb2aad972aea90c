"""Type checks of configurations against the annotations of called functions, before any call."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from types import NoneType, UnionType
from typing import (
    Any,
    Literal,
    Optional,
    TypedDict,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from hydra.utils import get_object

TARGET, MISSING = "_target_", "???"
_ANYTHING: tuple[Any, ...] = (Any, object)


class Paths(TypedDict):
    """The keys of the group ``paths``."""

    data: str | None
    runs: str
    run: str


# The type of keys whose value is a node with a target: the function or class makes any object.
Made = Callable[..., Any]


class Learning(TypedDict):
    """The keys of ``lmbm train`` for all kinds of training."""

    name: str
    seed: int
    C: float | str
    margin: float
    rules: str | None
    paths: Paths
    data: Made


class Training(Learning):
    """The keys of ``lmbm train`` for a model trained by epochs."""

    resume: str | None
    trust: list[str]
    coupling_penalty: float | str
    model: Made
    ordering: Made
    training: Made
    trainer: Made
    inference: Made | None
    logger: dict[str, Made | None] | None
    callbacks: dict[str, Made | None]


class Estimation(Learning):
    """The keys of ``lmbm train estimator=…``."""

    estimator: Made


class Comparison(TypedDict):
    """The keys of ``lmbm compare``."""

    data: Made
    methods: list[str] | None
    reference: str
    splits: int
    test_fraction: float
    budget: int
    folds: int
    seed: int
    cluster: str | None
    name: str | None
    output: str | None


def check_types(config: Mapping[Any, Any], keys: type) -> None:
    """Raise ValueError if any value in a configuration has a wrong type.

    Args:
        config: nested mappings and lists, resolved.
        keys: the typed dictionary of the top-level keys. Every other mapping with a ``_target_`` is checked
            against the annotations of that function or class.

    Raises:
        ValueError: a value has another type, a target cannot be imported, or a target does not have an
            argument; the message names the key.
    """
    _check_fields("", config, get_type_hints(keys))
    _check_targets("", config)


def check_call(
    key: str, target: Callable[..., Any], arguments: Mapping[Any, Any], *, is_partial: bool = False
) -> None:
    """Raise ValueError if ``target`` lacks a keyword argument, or annotates another type.

    Args:
        key: the key of the arguments in the configuration.
        is_partial: whether further arguments are passed later; arguments without default may then be null.

    Raises:
        ValueError: see :func:`check_types`.
    """
    expected, is_open = _arguments(target, is_partial)
    if unknown := [] if is_open else [name for name in arguments if name not in expected]:
        raise ValueError(f"{_inside(key, unknown[0])}: unknown key, expected one of {', '.join(expected)}")
    _check_fields(key, arguments, expected)


def _check_targets(key: str, node: Any) -> None:
    if isinstance(node, list):
        for place, value in enumerate(node):
            _check_targets(_inside(key, place), value)
    if not isinstance(node, Mapping):
        return
    if TARGET in node:
        is_partial = node.get("_partial_", False)
        if not isinstance(is_partial, bool):
            raise ValueError(f"{key}._partial_: expected true or false, got {is_partial!r}")
        # Keys of Hydra, which begin with an underscore, are no arguments.
        named = {name: value for name, value in node.items() if not str(name).startswith("_")}
        check_call(key, _located(key, node[TARGET]), named, is_partial=is_partial)
    for name, value in node.items():
        _check_targets(_inside(key, name), value)


def _located(key: str, path: Any) -> Callable[..., Any]:
    try:
        target = get_object(path)
    except (ImportError, ValueError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{key}.{TARGET}: expected a function or class to import, got {path!r}: {error}"
        ) from error
    if not callable(target):
        raise ValueError(f"{key}.{TARGET}: expected a function or class, got {path!r}")
    return target


def _arguments(target: Callable[..., Any], is_partial: bool) -> tuple[dict[str, Any], bool]:
    """Return a target's keyword arguments with annotations, and whether any further argument is allowed.

    A class with ``**kwargs`` has the arguments of the base classes, too.
    """
    functions = [each.__init__ for each in target.__mro__] if inspect.isclass(target) else [target]
    expected: dict[str, Any] = {}
    for function in functions:
        hints = get_type_hints(function)
        passed_on = False
        for name, argument in inspect.signature(function).parameters.items():
            if argument.kind is argument.VAR_KEYWORD:
                passed_on = True
            elif argument.kind is not argument.VAR_POSITIONAL and name != "self":
                kind = hints.get(name, Any)
                may_wait = is_partial and argument.default is argument.empty
                expected.setdefault(name, Optional[kind] if may_wait else kind)  # noqa: UP045  # as a value
        if not passed_on:
            return expected, False
    return expected, True


def _check_fields(key: str, values: Mapping[Any, Any], expected: Mapping[str, Any]) -> None:
    for name, value in values.items():
        _check(_inside(key, name), value, expected.get(name, Any))


def _check(key: str, value: Any, kind: Any) -> None:
    if isinstance(value, Mapping) and TARGET not in value:
        # A dictionary with typed keys is checked key by key, so that the message names the wrong key.
        if is_typeddict(kind):
            return _check_fields(key, value, get_type_hints(kind))
        if get_origin(kind) is dict:
            return _check_fields(key, value, dict.fromkeys(value, get_args(kind)[1]))
    if value != MISSING and not _fits(value, kind):
        raise ValueError(f"{key}: expected {_described(kind)}, got {value!r}")
    return None


def _inside(key: str, name: Any) -> str:
    return f"{key}.{name}" if key else str(name)


def _fits(value: Any, annotation: Any) -> bool:
    """Return whether a YAML value fits an annotation; nodes with a target fit all annotations."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin in (Union, UnionType):
        return any(_fits(value, each) for each in inner)
    if origin is Literal:
        return any(value == each and type(value) is type(each) for each in inner)
    kind: Any = origin or annotation
    is_open = kind in _ANYTHING or not isinstance(kind, type)
    if is_open or (isinstance(value, Mapping) and TARGET in value):
        return True
    if value is None or isinstance(value, bool):
        return kind is type(value)
    if isinstance(value, int | float):
        return kind is float or kind is type(value)
    if isinstance(value, str):
        return kind is str or hasattr(kind, "__fspath__")
    if isinstance(value, Mapping):
        return issubclass(dict, kind) and all(_fits(each, inner[1]) for each in value.values() if inner)
    return _fits_list(value, kind, inner)


def _fits_list(values: list[Any], kind: type, inner: tuple[Any, ...]) -> bool:
    if kind is tuple and inner and inner[-1] is not ...:
        return len(values) == len(inner) and all(map(_fits, values, inner))
    return (kind is tuple or issubclass(list, kind)) and all(
        _fits(each, inner[0]) for each in values if inner
    )


_WORDS = {int: "an integer", float: "a number", bool: "true or false", str: "a text", NoneType: "null"}


def _place(kind: Any) -> float:
    """Return the order of a type in messages: null is last, and types without a word precede null."""
    return list(_WORDS).index(kind) if kind in _WORDS else len(_WORDS) - 1.5


def _described(kind: Any) -> str:
    """Return a description of a type in words for authors of YAML."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        # The types are sorted, because typing may return an equal union in another order.
        return " or ".join(dict.fromkeys(map(_described, sorted(inner, key=_place))))
    if origin is Literal:
        return "one of " + ", ".join(map(repr, inner))
    kind = origin or kind
    if kind in _WORDS:
        return _WORDS[kind]
    if hasattr(kind, "__fspath__"):
        return _WORDS[str]
    if kind is tuple or (isinstance(kind, type) and issubclass(list, kind)):
        return "a list, each entry " + _described(inner[0]) if inner else "a list"
    if isinstance(kind, type) and issubclass(dict, kind):
        return "a mapping"
    return f"a node with a {TARGET}"
