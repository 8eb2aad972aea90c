"""Decoders as plain descriptions in the files of trained models."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from inspect import get_annotations, isclass, ismethod, isroutine, signature
from typing import Any

from lmbm_torch.inference.common.results import Decoding
from lmbm_torch.inference.messages.matching import MatchedInference
from lmbm_torch.persistence.stored import Given

Decoder = Callable[[Any], Decoding]
"""energy → decoding."""
ROOM = "lmbm_torch.inference"


@dataclass(frozen=True)
class OwnDecoder:
    """A decoder outside this library, represented by an import path.

    Reading a file never imports the decoder. If a run directory is loaded, the configuration names the
    decoder; if a model file is loaded, the caller must pass the decoder again.
    """

    path: str

    def __call__(self, energy: Any) -> Decoding:
        """Refuse to decode.

        Raises:
            ValueError: always.
        """
        raise ValueError(
            f"decoder: expected {self.path}, by which the model was trained to predict: a file does not hold "
            "it, so give it, or load the run directory"
        )


def description(decoder: Decoder) -> dict[str, Any]:
    """Return the import path and the settings of a decoder in plain values.

    The description of a method of :class:`~lmbm_torch.inference.messages.matching.MatchedInference` is that
    of the object. ``settings`` is None if a file cannot store the decoder: a function outside of
    :mod:`lmbm_torch.inference`, positional arguments, or a value that is no number, bool, text or None.
    """
    if ismethod(decoder) and isinstance(decoder.__self__, MatchedInference):
        return decoder.__self__.stored_parts()
    is_partial = isinstance(decoder, partial)
    routine, settings = (decoder.func, decoder.keywords) if is_partial else (decoder, {})
    path = path_of(decoder)
    is_plain = all(isinstance(value, bool | int | float | str | None) for value in settings.values())
    is_held = is_plain and not (is_partial and decoder.args) and _routine(path) is routine
    return {"routine": path, "settings": dict(settings) if is_held else None}


def decoder_of(described: dict[str, Any]) -> Decoder:
    """Return the decoder of a :func:`description`.

    Raises:
        KeyError, TypeError: the argument is no description, or has settings that the decoder does not take.
        ValueError: a routine that is no decoder of :mod:`lmbm_torch.inference`.
    """
    if "num_iters" in described:
        return MatchedInference.from_parts(Given(), **described).decode
    path, settings = described["routine"], described["settings"]
    if settings is None:
        return OwnDecoder(path)
    routine = _routine(path)
    if routine is None:
        raise ValueError(f"decoder: expected the path of a decoder in {ROOM}, got {path}")
    signature(routine).bind(None, **settings)
    return partial(routine, **settings)


def with_settings(decoder: Decoder, **settings: Any) -> Decoder:
    """Return a decoder with changed settings, such as ``top_k`` or ``node_limit``.

    Raises:
        ValueError: a setting unknown to the decoder.
    """
    for name in settings:
        if name not in signature(decoder).parameters:
            raise ValueError(f"{name}: expected None, as {path_of(decoder)} has no such setting")
    return partial(decoder, **settings)


def path_of(decoder: Decoder) -> str:
    """Return the import path of a decoder's function or class."""
    if isinstance(decoder, OwnDecoder):
        return decoder.path
    routine = decoder.func if isinstance(decoder, partial) else decoder
    named: Any = routine if isroutine(routine) or isclass(routine) else type(routine)
    return f"{named.__module__}.{named.__qualname__}"


def _routine(path: str) -> Decoder | None:
    """Return the public decoder of :mod:`lmbm_torch.inference` with an import path; None for other paths."""
    module, _, name = path.rpartition(".")
    if not module.startswith(f"{ROOM}.") or name.startswith("_"):
        return None
    try:
        found = vars(import_module(module)).get(name)
    except ImportError:
        return None
    returns_decoding = isroutine(found) and get_annotations(found).get("return") in ("Decoding", Decoding)
    return found if returns_decoding else None
