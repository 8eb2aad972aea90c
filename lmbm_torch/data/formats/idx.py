"""The idx format of the MNIST database: a header that says type and shape, then the numbers."""

from __future__ import annotations

import math
import struct
import zlib
from os import PathLike
from typing import Any

import numpy as np

from lmbm_torch.data.formats.compressed import open_compressed
from lmbm_torch.files import reading

_TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_AT_ONCE = 2**24


def read_idx(path: str | PathLike) -> np.ndarray:
    """Read one array, gzipped or not, in the machine's own byte order.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: not an idx file, or truncated, or longer than its header says. The message names the file.
    """
    with reading(path, OSError, EOFError, struct.error, zlib.error) as file:
        with file.open("rb") as stream:
            is_zipped = stream.read(2) == b"\x1f\x8b"
        with open_compressed(file, ".gz" if is_zipped else ".idx") as stream:
            start = stream.read(4)
            zeros, code, rank = struct.unpack(">HBB", start)
            if zeros or code not in _TYPES:
                raise ValueError(f"expected an idx file, got one that starts with {start!r}")
            shape = struct.unpack(f">{rank}I", stream.read(4 * rank))
            kind = np.dtype(_TYPES[code])
            size = kind.itemsize * math.prod(shape)
            numbers = _read(stream, size + 1)
        if len(numbers) != size:
            more = " at least" if len(numbers) > size else ""
            raise ValueError(f"expected numbers of shape {shape}, got {len(numbers)} bytes of them{more}")
        return np.frombuffer(numbers, kind).reshape(shape).astype(kind.newbyteorder("="))


def _read(stream: Any, most: int) -> bytes:
    """Up to so many bytes: a small file may decompress to anything, and a damaged one ask for anything."""
    parts = []
    while most > 0 and (part := stream.read(min(most, _AT_ONCE))):
        parts.append(part)
        most -= len(part)
    return b"".join(parts)
