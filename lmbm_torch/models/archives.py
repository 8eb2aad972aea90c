"""The file format of models and estimators: tensors as safetensors, the structure as JSON metadata.

The metadata of a safetensors file name the format, the version, the kind of content, the record of the
content, and the SHA-256 of everything. Reading a file executes nothing from the file: only plain values,
tensors and the kinds of objects that the caller names can come out. This module is internal and may change.
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
# Errors of a damaged record.
DAMAGE = (AttributeError, IndexError, KeyError, OverflowError, RuntimeError, TypeError, ValueError)
LIBRARY = "lmbm_torch."
# The dtypes of arrays of numbers and of texts.
_DTYPE = re.compile(r"[<>|](?:[biuf]\d{1,2}|O|U\d{1,6})")
_NO_SAFETENSORS = "expected a safetensors file, got one that is truncated, corrupted or of another kind"
# Bytes: safetensors itself refuses longer ones.
_LONGEST_HEADER = 100_000_000
# Numbers that JSON lacks, by text.
_NUMBERS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


@dataclass(frozen=True)
class Kind:
    """A class whose instances a file can hold.

    Args:
        name: the name in files.
        type: the class; instances of subclasses do not count.
        parts: maps an instance to the arguments of :attr:`build` by name, each a value that a file can hold.
        build: maps the arguments to an instance.
    """

    name: str
    type: type
    parts: Callable[[Any], dict[str, Any]]
    build: Callable[..., Any]


class Stored:
    """A class with a name in files: the name in this library, or else the import path.

    Only imported subclasses can be rebuilt from a file: reading never imports a module.
    """

    @classmethod
    def stored_name(cls) -> str:
        """Return the name of the class in files."""
        own = cls.__module__.startswith(LIBRARY)
        return cls.__qualname__ if own else f"{cls.__module__}.{cls.__qualname__}"

    @classmethod
    def stored_classes(cls) -> Iterator[type[Self]]:
        """Return all imported subclasses."""
        for each in cls.__subclasses__():
            yield each
            yield from each.stored_classes()


def fields_of(record: Any) -> dict[str, Any]:
    """Return the fields of a frozen record as arguments of the constructor."""
    return {field.name: getattr(record, field.name) for field in fields(record)}


def write(
    path: str | PathLike, holds: str, content: Any, kinds: Sequence[Kind] = (), mode: Mode = "x"
) -> None:
    """Write ``content``; the file appears complete or not at all.

    Args:
        holds: a name for the kind of content; :func:`read` must give the same name.
        content: None, bools, numbers, texts, tensors, NumPy arrays and numbers, instances of ``kinds``, and
            lists, tuples and dictionaries with text keys.
        mode: as in ``open``: by default an existing file is never overwritten.

    Raises:
        FileExistsError: the file exists, in mode ``"x"``.
        OSError: the file cannot be written; the message names the file, and an older file stays.
        TypeError: ``content`` has a value of another type; the message says where.
    """
    with naming_extras():
        from safetensors.torch import save

    check_free(path, mode)
    packed, views = pack(content, "content", kinds)
    # safetensors refuses tensors with shared memory.
    tensors = {name: tensor.cpu().contiguous().clone() for name, tensor in views.items()}
    metadata = {"format": FORMAT, "version": str(VERSION), "holds": holds, "record": json.dumps(packed)}
    metadata["sha256"] = checksum(metadata, tensors)
    content_of_file = _sorted_header(save(tensors, metadata))
    with replacing(path, mode) as stream:
        stream.write(content_of_file)


def read(path: str | PathLike, holds: str, kinds: Sequence[Kind] = ()) -> Any:
    """Return the content of a file, all tensors on the CPU.

    Raises:
        FileNotFoundError: the file does not exist.
        ValueError: the file is truncated, corrupted, of another format or of a newer version, or holds
            another kind of content or an object of a kind that is not named. The message names the file.
    """
    # Opened once: another process may replace the file between two openings.
    with reading(path, *DAMAGE) as file, file.open("rb") as stream:
        header = _read_header(stream)
        metadata = _metadata(header)
        # Checked before the tensors, which may be many, of another program are read.
        _check_format(metadata)
        tensors = _tensors(header + stream.read())
        _check_content(metadata, tensors, holds)
        return unpack(json.loads(metadata["record"]), tensors, kinds)


def pack(content: Any, name: str, kinds: Sequence[Kind] = ()) -> tuple[Any, dict[str, Tensor]]:
    """Convert ``content`` to plain JSON values for :func:`unpack`, and its tensors by name, without copies.

    Args:
        content: see :func:`write`.
        name: the first part of the tensors' names; the keys on the way to each tensor follow, joined by full
            stops.

    Raises:
        TypeError: a value that cannot be packed; the message says where.
    """
    tensors: dict[str, Tensor] = {}
    return _packed(content, tensors, name, {kind.type: kind for kind in kinds}), tensors


def unpack(packed: Any, tensors: Mapping[str, Tensor], kinds: Sequence[Kind] = ()) -> Any:
    """Return the content that :func:`pack` packed.

    Raises:
        KeyError: a tensor or a part of the packed content is missing.
        TypeError: an object has other parts than the kind needs.
        ValueError: an object of a kind that is not named, or parts that do not fit.
    """
    return _unpacked(packed, tensors, {kind.name: kind for kind in kinds})


def peek(path: str | PathLike) -> str | None:
    """Return the ``holds`` of a file; None for a file of another format or a missing file."""
    try:
        with Path(path).open("rb") as stream:
            metadata = _metadata(_read_header(stream))
    except (OSError, ValueError):
        return None
    return metadata.get("holds") if metadata.get("format") == FORMAT else None


def checksum(metadata: Mapping[str, str], tensors: Mapping[str, Tensor]) -> str:
    """Return the hexadecimal SHA-256 of a file's metadata, without the checksum, and of the tensors."""
    digest = hashlib.sha256(json.dumps(dict(metadata), sort_keys=True).encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(repr((name, str(tensor.dtype), tuple(tensor.shape))).encode())
        # Bytes, since NumPy lacks some of torch's dtypes.
        digest.update(tensor.flatten().view(torch.uint8).numpy().tobytes() if tensor.numel() else b"")
    return digest.hexdigest()


def _read_header(stream: BufferedIOBase) -> bytes:
    """Read the start of a safetensors file: eight bytes of length, and JSON of the length."""
    size = stream.read(8)
    length = int.from_bytes(size, "little")
    text = stream.read(length) if length <= _LONGEST_HEADER else b""
    if len(size) < 8 or len(text) < length:
        raise ValueError(_NO_SAFETENSORS)
    return size + text


def _metadata(header: bytes) -> dict[str, str]:
    """Return the texts that a safetensors file keeps with the tensors."""
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
    """Sort the header of a file, as safetensors writes metadata in a new order each time."""
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
    """Convert ``value`` to JSON; other types become dictionaries with a key such as ``:tensor``."""
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
        # Little-endian for torch; a copy, since torch takes no read-only arrays.
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
        # A width from a file would reserve memory for each text.
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
    """Return a dtype by name, without NumPy's parser, which also takes repetitions."""
    if not _DTYPE.fullmatch(name):
        raise ValueError(f"dtype: expected that of numbers or texts, got {name!r}")
    return np.dtype(name)
