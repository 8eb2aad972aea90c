"""The file format of models, estimators and predictors: a safetensors file with a header of JSON.

Arrays are tensors of the safetensors file. The metadata hold the format, the version, a record (all else, as
JSON), and the SHA-256 of metadata and tensors. Reading executes no code of the file: the content becomes
plain values, tensors, and instances of known classes.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from io import BufferedIOBase, BytesIO
from os import PathLike
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lmbm_torch.extras import naming_extras
from lmbm_torch.files import Mode, check_free, reading, replacing
from lmbm_torch.persistence.stored import Given, Kind, kind_named, kind_of

FORMAT = "lmbm_torch"
VERSION = 1
# Exceptions that reading a damaged file may raise.
DAMAGE = (AttributeError, IndexError, KeyError, OverflowError, RuntimeError, TypeError, ValueError)
# Largest number of bytes in a header: the limit of safetensors itself.
LONGEST_HEADER = 100_000_000
# Largest depth of nested lists and objects in a record; an estimator in an estimator has depth six.
DEEPEST = 200
# Matches the dtypes of arrays of numbers and of texts.
_DTYPE = re.compile(r"[<>|](?:[biuf]\d{1,2}|O|U\d{1,6})")
_NO_SAFETENSORS = (
    "expected a checkpoint or a safetensors file, got a file that is truncated, corrupted or of another kind"
)
# Numbers that JSON cannot hold, by the texts that stand for them in a file.
_NUMBERS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def write(path: str | PathLike, content: Any, mode: Mode = "x") -> None:
    """Write ``content`` to a file, which appears complete or not at all.

    Args:
        content: None, a bool, a number, a text, a tensor, an array or number of NumPy, an instance of a
            stored class, or a list, a tuple or a dictionary (with texts as keys) of such values.
        mode: as in ``open``: by default an existing file is never overwritten.

    Raises:
        FileExistsError: the file exists, in mode ``"x"``.
        OSError: the file cannot be written; the message names the file, and an older file stays.
        TypeError: ``content`` holds another value; the message names the place.
    """
    with naming_extras():
        from safetensors.torch import save

    check_free(path, mode)
    state = pack(content)
    # Clone the tensors, because safetensors refuses tensors that share memory.
    tensors = {name: tensor.cpu().contiguous().clone() for name, tensor in state.pop("tensors").items()}
    metadata = {"format": FORMAT, **state}
    metadata["sha256"] = checksum(metadata, tensors)
    content_of_file = _sorted_header(save(tensors, metadata))
    with replacing(path, mode) as stream:
        stream.write(content_of_file)


def read(path: str | PathLike, given: Given | None = None) -> Any:
    """Return the content of a file, with all tensors on the CPU.

    Args:
        given: arguments that a file cannot hold, such as an encoder.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is truncated, corrupted, of another format or of another version, or holds an
            instance of a class that is not imported. The message names the file.
    """
    # Open the file only once, because another process may replace the file in the meantime.
    with reading(path, *DAMAGE) as file, file.open("rb") as stream:
        header = _read_header(stream)
        metadata = _metadata(header)
        # Check the format before reading tensors, because a file of another program may hold many tensors.
        if metadata.get("format") != FORMAT:
            raise ValueError("expected a file that lmbm_torch wrote, got another safetensors file")
        _check_version(metadata["version"])
        tensors = _tensors(header + stream.read())
        unsigned = {name: value for name, value in metadata.items() if name != "sha256"}
        if checksum(unsigned, tensors) != metadata.get("sha256"):
            raise ValueError("the file is corrupted: its content does not have the checksum in the file")
        return unpack({**metadata, "tensors": tensors}, given)


def pack(content: Any, name: str = "content") -> dict[str, Any]:
    """Convert ``content`` to plain values for a file or for a part of a checkpoint; see :func:`unpack`.

    Args:
        content: see :func:`write`.
        name: the start of the tensors' names; the keys that lead to a tensor follow, with dots between.

    Returns:
        A dictionary with ``version``, ``record`` (as JSON), and ``tensors`` by name; tensors are not copied.

    Raises:
        TypeError: see :func:`write`.
    """
    tensors: dict[str, Tensor] = {}
    record = json.dumps(_packed(content, tensors, name))
    return {"version": str(VERSION), "record": record, "tensors": tensors}


def unpack(state: Mapping[str, Any], given: Given | None = None) -> Any:
    """Convert the result of :func:`pack` back to the content; for ``given`` see :func:`read`.

    Raises:
        KeyError: a tensor, or a part of the record, is missing.
        TypeError: the parts of an instance do not fit the class.
        ValueError: the version is not :data:`VERSION`, a class is not imported, or nesting is too deep.
    """
    _check_version(state["version"])
    return _Reader(state["tensors"], given or Given()).value(json.loads(state["record"]))


def checksum(metadata: Mapping[str, str], tensors: Mapping[str, Tensor]) -> str:
    """Return the hexadecimal SHA-256 of metadata, without the checksum itself, and of tensors."""
    digest = hashlib.sha256(json.dumps(dict(metadata), sort_keys=True).encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(repr((name, str(tensor.dtype), tuple(tensor.shape))).encode())
        # Convert tensors to bytes first, because NumPy lacks some of torch's types.
        digest.update(tensor.flatten().view(torch.uint8).numpy().tobytes() if tensor.numel() else b"")
    return digest.hexdigest()


def _read_header(stream: BufferedIOBase) -> bytes:
    """Return the header of a safetensors file: eight bytes with the length of the JSON, then the JSON."""
    size = stream.read(8)
    length = int.from_bytes(size, "little")
    text = stream.read(length) if length <= LONGEST_HEADER else b""
    if len(size) < 8 or len(text) < length:
        raise ValueError(_NO_SAFETENSORS)
    return size + text


def _metadata(header: bytes) -> dict[str, str]:
    """Return the metadata in the header of a safetensors file."""
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
    """Sort the keys of a file's header, unsorted by safetensors: equal content then gives equal bytes."""
    header = _read_header(BytesIO(content))
    text = json.dumps(json.loads(header[8:]), sort_keys=True, separators=(",", ":"))
    encoded = text.encode()
    # Fill the header with spaces, because tensors must begin at a multiple of eight bytes.
    encoded += b" " * (-len(encoded) % 8)
    return len(encoded).to_bytes(8, "little") + encoded + content[len(header) :]


def _check_version(version: str) -> None:
    if int(version) != VERSION:
        raise ValueError(
            f"expected version {VERSION} of the format, got version {version}; read the file with "
            "the lmbm_torch that wrote it"
        )


def _packed(value: Any, tensors: dict[str, Tensor], place: str) -> Any:
    """Convert a value to JSON; types that JSON lacks become dictionaries, marked by a colon in the key."""
    if value is None or isinstance(value, bool | str) or type(value) is int:
        return value
    if type(value) is float:
        return value if math.isfinite(value) else {":number": str(value)}
    if isinstance(value, Tensor):
        return {":tensor": _stored(value, tensors, place)}
    if isinstance(value, np.generic | np.ndarray):
        return _packed_array(value, tensors, place)
    if isinstance(value, list | tuple):
        packed = [_packed(entry, tensors, f"{place}.{i}") for i, entry in enumerate(value)]
        return packed if isinstance(value, list) else {":tuple": packed}
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {":dict": [[key, _packed(entry, tensors, f"{place}.{key}")] for key, entry in value.items()]}
    if (kind := kind_of(value)) is not None:
        return {":kind": kind.name, "parts": _packed(kind.parts(value), tensors, place)}
    raise TypeError(f"{place}: expected a value that a file can hold, got {type(value).__qualname__}")


def _packed_array(value: np.generic | np.ndarray, tensors: dict[str, Tensor], place: str) -> dict[str, Any]:
    array = np.asarray(value)
    if array.dtype.kind in "biuf":
        # Convert the byte order and copy: torch refuses other byte orders and warns of read-only arrays.
        plain = np.array(array, dtype=array.dtype.newbyteorder("="), order="C")
        stored = _stored(torch.from_numpy(plain), tensors, place)
        return {":array": stored, "dtype": array.dtype.str, "is_number": isinstance(value, np.generic)}
    if array.dtype.kind in "OU" and all(isinstance(entry, str) for entry in array.ravel().tolist()):
        return {":texts": array.tolist(), "dtype": array.dtype.str}
    raise TypeError(f"{place}: expected an array of numbers or texts, got {array.dtype}")


def _stored(tensor: Tensor, tensors: dict[str, Tensor], place: str) -> str:
    if tensor.layout != torch.strided:
        raise TypeError(f"{place}: expected a dense tensor, got a tensor of layout {tensor.layout}")
    tensors[place] = tensor.detach()
    return place


class _Reader:
    """A converter of the JSON record of a file to values.

    Args:
        tensors: the tensors of the file, by name.
        given: arguments that a file cannot hold, such as an encoder.
    """

    def __init__(self, tensors: Mapping[str, Tensor], given: Given) -> None:
        self._tensors, self._given = tensors, given
        # Classes found so far, by name: a record may hold thousands of instances of a class, such as rules.
        self._kinds: dict[str, Kind] = {}

    def value(self, packed: Any, depth: int = 0) -> Any:
        """Convert JSON of :func:`_packed` back to the value."""
        if depth > DEEPEST:
            raise ValueError(f"expected at most {DEEPEST} levels of nesting, got more")
        if isinstance(packed, list):
            return [self.value(entry, depth + 1) for entry in packed]
        if not isinstance(packed, dict):
            return packed
        if ":number" in packed:
            return _NUMBERS[packed[":number"]]
        if ":tensor" in packed:
            return self._tensors[packed[":tensor"]]
        if ":array" in packed:
            tensor = self._tensors[packed[":array"]].numpy()
            array = np.array(tensor, dtype=_dtype(packed["dtype"], "biuf"))
            return array[()] if packed["is_number"] else array
        if ":texts" in packed:
            # Ignore the width of texts in the file: a forged width would reserve too much memory.
            is_object = _dtype(packed["dtype"], "OU").kind == "O"
            return np.array(packed[":texts"], dtype=object if is_object else str)
        if ":tuple" in packed:
            return tuple(self.value(packed[":tuple"], depth + 1))
        if ":dict" in packed:
            return {key: self.value(entry, depth + 1) for key, entry in packed[":dict"]}
        name = packed[":kind"]
        if name not in self._kinds:
            self._kinds[name] = kind_named(name)
        return self._kinds[name].build(self._given, **self.value(packed["parts"], depth + 1))


def _dtype(name: str, kinds: str) -> np.dtype:
    """Check the name of a dtype, since NumPy would accept other texts, too; return the dtype."""
    if not _DTYPE.fullmatch(name) or np.dtype(name).kind not in kinds:
        raise ValueError(f"dtype: expected a type of numbers or texts, got {name!r}")
    return np.dtype(name)
