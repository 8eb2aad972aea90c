"""Decoders as plain descriptions, by which the file of a trained model says how it predicts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from inspect import get_annotations, isclass, ismethod, isroutine, signature
from typing import Any

from lmbm_torch.inference.messages.matching import MatchedInference
from lmbm_torch.inference.results import Decoding
from lmbm_torch.persistence.stored import Given

Decoder = Callable[[Any], Decoding]
"""energy → decoding."""
ROOM = "lmbm_torch.inference"


@dataclass(frozen=True)
class OwnDecoder:
    """A decoder outside this library, of which a file holds the import path alone.

    No file makes the library import it. A run directory is loaded with the decoder that its configuration
    names; elsewhere the caller gives it again.
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
    """The routine of a decoder by its import path, and its settings by name, in plain values.

    A :class:`~lmbm_torch.inference.messages.matching.MatchedInference` has its own record. ``settings`` is
    None for a decoder that no file can hold: a function outside :mod:`lmbm_torch.inference`, or settings that
        are no
    plain values.
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
    """The decoder of a :func:`description`.

    Raises:
        KeyError, TypeError: it is none, or has settings that the routine does not know.
        ValueError: a routine that is no decoder of :mod:`lmbm_torch.inference`.
    """
    if "num_iters" in described:
        return MatchedInference.from_parts(Given(), **described).decode
    path, settings = described["routine"], described["settings"]
    if settings is None:
        return OwnDecoder(path)
    routine = _routine(path)
    if routine is None:
        raise ValueError(f"decoder: expected one of {ROOM}, got {path}")
    signature(routine).bind(None, **settings)
    return partial(routine, **settings)


def with_settings(decoder: Decoder, **settings: Any) -> Decoder:
    """The same decoder with other settings, such as ``top_k`` or ``node_limit``.

    Raises:
        ValueError: one that the decoder does not have.
    """
    for name in settings:
        if name not in signature(decoder).parameters:
            raise ValueError(f"{name}: expected none for a model that decodes by {path_of(decoder)}")
    return partial(decoder, **settings)


def path_of(decoder: Decoder) -> str:
    """The import path of the function of a decoder, or of the class of an object that decodes."""
    if isinstance(decoder, OwnDecoder):
        return decoder.path
    routine = decoder.func if isinstance(decoder, partial) else decoder
    named: Any = routine if isroutine(routine) or isclass(routine) else type(routine)
    return f"{named.__module__}.{named.__qualname__}"


def _routine(path: str) -> Decoder | None:
    """The public function of :mod:`lmbm_torch.inference` of this path, if that returns a decoding."""
    module, _, name = path.rpartition(".")
    if not module.startswith(f"{ROOM}.") or name.startswith("_"):
        return None
    try:
        found = vars(import_module(module)).get(name)
    except ImportError:
        return None
    returns_decoding = isroutine(found) and get_annotations(found).get("return") in ("Decoding", Decoding)
    return found if returns_decoding else None
