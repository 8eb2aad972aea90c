"""One file for models and estimators: tensors as safetensors, and their structure as JSON metadata.

A file is a safetensors file whose metadata name the format, its version, what it holds, the record that says
how, and the SHA-256 of all of it. Reading one executes nothing that the file says: plain values, tensors and
the kinds of objects that the caller names are all that can come out.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from io import BufferedIOBase, BytesIO
from os import PathLike
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from lmbm_torch.extras import naming_extras
from lmbm_torch.files import Mode, check_free, reading, replacing

FORMAT = "lmbm_torch"
VERSION = 1
# The errors that a damaged record leads to.
DAMAGE = (AttributeError, IndexError, KeyError, OverflowError, RuntimeError, TypeError, ValueError)
LIBRARY = "lmbm_torch."
# The dtypes of arrays of numbers and of texts.
_DTYPE = re.compile(r"[<>|](?:[biuf]\d{1,2}|O|U\d{1,6})")
_NO_SAFETENSORS = "expected a safetensors file, got one that is truncated, corrupted or of another kind"
# Bytes: safetensors itself refuses longer ones.
_LONGEST_HEADER = 100_000_000
# Numbers that JSON lacks, by their texts.
_NUMBERS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


@dataclass(frozen=True)
class Kind:
    """A class whose instances a file can hold.

    Args:
        name: its name in files.
        type: its class; instances of subclasses are not taken for it.
        parts: an instance → the arguments of :attr:`build` by name: anything that a file can hold.
        build: these arguments → an instance.
    """

    name: str
    type: type
    parts: Callable[[Any], dict[str, Any]]
    build: Callable[..., Any]


class Stored:
    """A class that names itself in files: by its name in this library, else by its import path.

    Only subclasses that are imported already can be rebuilt from a file: reading one never imports a module.
    """

    @classmethod
    def stored_name(cls) -> str:
        """The name of the class in files."""
        own = cls.__module__.startswith(LIBRARY)
        return cls.__qualname__ if own else f"{cls.__module__}.{cls.__qualname__}"

    @classmethod
    def stored_classes(cls) -> Iterator[type[Self]]:
        """All imported subclasses."""
        for each in cls.__subclasses__():
            yield each
            yield from each.stored_classes()


def fields_of(record: Any) -> dict[str, Any]:
    """The parts of a frozen record: its fields, as its constructor takes them."""
    return {field.name: getattr(record, field.name) for field in fields(record)}


def write(
    path: str | PathLike, holds: str, content: Any, kinds: Sequence[Kind] = (), mode: Mode = "x"
) -> None:
    """Write ``content``; the file appears complete or not at all.

    Args:
        holds: a name for the content, which :func:`read` must give too.
        content: None, bools, numbers, texts, tensors, NumPy arrays and numbers, instances of ``kinds``, and
            lists, tuples and dictionaries by text of these.
        mode: as in ``open``: by default an existing file is never overwritten.

    Raises:
        FileExistsError: the file exists, in mode ``"x"``.
        OSError: the file cannot be written; the message names it, and an older file stays.
        TypeError: something else in ``content``; the message says where.
    """
    with naming_extras():
        from safetensors.torch import save

    check_free(path, mode)
    packed, views = pack(content, "content", kinds)
    # safetensors takes no two tensors that share memory.
    tensors = {name: tensor.cpu().contiguous().clone() for name, tensor in views.items()}
    metadata = {"format": FORMAT, "version": str(VERSION), "holds": holds, "record": json.dumps(packed)}
    metadata["sha256"] = checksum(metadata, tensors)
    content_of_file = _sorted_header(save(tensors, metadata))
    with replacing(path, mode) as stream:
        stream.write(content_of_file)


def read(path: str | PathLike, holds: str, kinds: Sequence[Kind] = ()) -> Any:
    """The content of a file, all tensors on the CPU.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is truncated, corrupted, of another format, of a newer version, or holds
            something else, or something of a kind that is not named. The message names the file.
    """
    # Opened once: between two times another process may replace the file.
    with reading(path, *DAMAGE) as file, file.open("rb") as stream:
        header = _read_header(stream)
        metadata = _metadata(header)
        # Before another program's tensors are read, which may be many.
        _check_format(metadata)
        tensors = _tensors(header + stream.read())
        _check_content(metadata, tensors, holds)
        return unpack(json.loads(metadata["record"]), tensors, kinds)


def pack(content: Any, name: str, kinds: Sequence[Kind] = ()) -> tuple[Any, dict[str, Tensor]]:
    """``content`` in the plain values of JSON, for :func:`unpack`, and its tensors by name, not copied.

    Args:
        content: see :func:`write`.
        name: the first part of the tensors' names; the keys on the way to each follow, joined by full stops.

    Raises:
        TypeError: something that cannot be packed; the message says where.
    """
    tensors: dict[str, Tensor] = {}
    return _packed(content, tensors, name, {kind.type: kind for kind in kinds}), tensors


def unpack(packed: Any, tensors: Mapping[str, Tensor], kinds: Sequence[Kind] = ()) -> Any:
    """The content that :func:`pack` packed.

    Raises:
        KeyError: a tensor, or a part of the packed content, is missing.
        TypeError: a kind is given other parts than it is built of.
        ValueError: something of a kind that is not named, or parts that do not fit.
    """
    return _unpacked(packed, tensors, {kind.name: kind for kind in kinds})


def peek(path: str | PathLike) -> str | None:
    """The ``holds`` of a file; None for a file of another format, or none at all."""
    try:
        with Path(path).open("rb") as stream:
            metadata = _metadata(_read_header(stream))
    except (OSError, ValueError):
        return None
    return metadata.get("holds") if metadata.get("format") == FORMAT else None


def checksum(metadata: Mapping[str, str], tensors: Mapping[str, Tensor]) -> str:
    """The hexadecimal SHA-256 of a file's metadata, without the checksum itself, and of its tensors."""
    digest = hashlib.sha256(json.dumps(dict(metadata), sort_keys=True).encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(repr((name, str(tensor.dtype), tuple(tensor.shape))).encode())
        # As bytes, since NumPy lacks some of torch's types.
        digest.update(tensor.flatten().view(torch.uint8).numpy().tobytes() if tensor.numel() else b"")
    return digest.hexdigest()


def _read_header(stream: BufferedIOBase) -> bytes:
    """The start of a safetensors file: eight bytes of length, and as much JSON."""
    size = stream.read(8)
    length = int.from_bytes(size, "little")
    text = stream.read(length) if length <= _LONGEST_HEADER else b""
    if len(size) < 8 or len(text) < length:
        raise ValueError(_NO_SAFETENSORS)
    return size + text


def _metadata(header: bytes) -> dict[str, str]:
    """The texts that safetensors keeps beside tensors; none, in a file that has none or is damaged."""
    try:
        found = json.loads(header[8:])
    except (ValueError, RecursionError) as error:
        raise ValueError(_NO_SAFETENSORS) from error
    texts = found.get("__metadata__") if isinstance(found, dict) else None
    return texts if isinstance(texts, dict) else {}


def _tensors(content: bytes) -> dict[str, Tensor]:
    with naming_extras():
        from safetensors import SafetensorError
        from safetensors.torch import load

    try:
        return load(content)
    except SafetensorError as error:
        raise ValueError(f"{_NO_SAFETENSORS}: {error}") from error


def _sorted_header(content: bytes) -> bytes:
    """The same file, its header in one order: safetensors writes metadata in another one each time."""
    header = _read_header(BytesIO(content))
    text = json.dumps(json.loads(header[8:]), sort_keys=True, separators=(",", ":"))
    encoded = text.encode()
    # Tensors begin at multiples of eight bytes.
    encoded += b" " * (-len(encoded) % 8)
    return len(encoded).to_bytes(8, "little") + encoded + content[len(header) :]


def _check_format(metadata: Mapping[str, str]) -> None:
    if metadata.get("format") != FORMAT:
        raise ValueError("expected a file that lmbm_torch wrote, got another safetensors file")
    version = int(metadata["version"])
    if version > VERSION:
        raise ValueError(
            f"expected a file of version {VERSION} or older, got version {version}: a newer lmbm_torch wrote "
            "it, and reads it"
        )
    if version < 1:
        raise ValueError(f"expected a file of version 1 to {VERSION}, got version {version}")


def _check_content(metadata: Mapping[str, str], tensors: Mapping[str, Tensor], holds: str) -> None:
    unsigned = {name: value for name, value in metadata.items() if name != "sha256"}
    if checksum(unsigned, tensors) != metadata.get("sha256"):
        raise ValueError("is corrupted: its content does not have the checksum that was written with it")
    if metadata["holds"] != holds:
        raise ValueError(f"expected a file that holds {holds}, got one that holds {metadata['holds']}")


def _packed(value: Any, tensors: dict[str, Tensor], place: str, kinds: Mapping[type, Kind]) -> Any:
    """``value`` in JSON; what JSON lacks becomes a dictionary whose first key starts with a colon."""
    if value is None or isinstance(value, bool | str) or type(value) is int:
        return value
    if type(value) is float:
        return value if math.isfinite(value) else {":number": str(value)}
    if isinstance(value, Tensor):
        return {":tensor": _stored(value, tensors, place)}
    if isinstance(value, np.generic | np.ndarray):
        return _packed_array(value, tensors, place)
    if isinstance(value, list | tuple):
        packed = [_packed(entry, tensors, f"{place}.{i}", kinds) for i, entry in enumerate(value)]
        return packed if isinstance(value, list) else {":tuple": packed}
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {
            ":dict": [[key, _packed(entry, tensors, f"{place}.{key}", kinds)] for key, entry in value.items()]
        }
    if type(value) in kinds:
        kind = kinds[type(value)]
        return {":kind": kind.name, "parts": _packed(kind.parts(value), tensors, place, kinds)}
    raise TypeError(f"{place}: expected what a file can hold, got {type(value).__qualname__}")


def _packed_array(value: np.generic | np.ndarray, tensors: dict[str, Tensor], place: str) -> dict[str, Any]:
    array = np.asarray(value)
    if array.dtype.kind in "biuf":
        # Little-endian, as torch needs it; a copy, since torch does not take read-only arrays.
        plain = np.array(array, dtype=array.dtype.newbyteorder("="), order="C")
        stored = _stored(torch.from_numpy(plain), tensors, place)
        return {":array": stored, "dtype": array.dtype.str, "is_number": isinstance(value, np.generic)}
    if array.dtype.kind in "OU" and all(isinstance(entry, str) for entry in array.ravel().tolist()):
        return {":texts": array.tolist(), "dtype": array.dtype.str}
    raise TypeError(f"{place}: expected an array of numbers or texts, got {array.dtype}")


def _stored(tensor: Tensor, tensors: dict[str, Tensor], place: str) -> str:
    if tensor.layout != torch.strided:
        raise TypeError(f"{place}: expected a dense tensor, got one of layout {tensor.layout}")
    tensors[place] = tensor.detach()
    return place


def _unpacked(packed: Any, tensors: Mapping[str, Tensor], kinds: Mapping[str, Kind]) -> Any:
    if isinstance(packed, list):
        return [_unpacked(entry, tensors, kinds) for entry in packed]
    if not isinstance(packed, dict):
        return packed
    if ":number" in packed:
        return _NUMBERS[packed[":number"]]
    if ":tensor" in packed:
        return tensors[packed[":tensor"]]
    if ":array" in packed:
        array = np.array(tensors[packed[":array"]].numpy(), dtype=_dtype(packed["dtype"]))
        return array[()] if packed["is_number"] else array
    if ":texts" in packed:
        # A width that a file announces would be room for each text.
        return np.array(packed[":texts"], dtype=object if _dtype(packed["dtype"]).kind == "O" else str)
    if ":tuple" in packed:
        return tuple(_unpacked(packed[":tuple"], tensors, kinds))
    if ":dict" in packed:
        return {key: _unpacked(entry, tensors, kinds) for key, entry in packed[":dict"]}
    if packed[":kind"] not in kinds:
        known = ", ".join(sorted(kinds))
        raise ValueError(
            f"expected objects of the kinds {known}, got {packed[':kind']}; a class of your own is known "
            "once its module is imported, as trusting it by name does (--trust NAME, or trust=[NAME])"
        )
    return kinds[packed[":kind"]].build(**_unpacked(packed["parts"], tensors, kinds))


def _dtype(name: str) -> np.dtype:
    """numpy itself would take far more, such as repetitions, and parses them as code."""
    if not _DTYPE.fullmatch(name):
        raise ValueError(f"dtype: expected that of numbers or texts, got {name!r}")
    return np.dtype(name)
