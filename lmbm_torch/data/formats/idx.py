"""The idx format of the MNIST database: a header that says type and shape, then the numbers."""

from __future__ import annotations

import gzip
import struct
import zlib
from os import PathLike

import numpy as np

from lmbm_torch.files import reading

_TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def read_idx(path: str | PathLike) -> np.ndarray:
    """Read one array, gzipped or not, in the machine's own byte order.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: not an idx file, or truncated, or longer than its header says. The message names the file.
    """
    with reading(path, OSError, EOFError, struct.error, zlib.error) as file:
        content = file.read_bytes()
        if content[:2] == b"\x1f\x8b":
            content = gzip.decompress(content)
        zeros, code, rank = struct.unpack_from(">HBB", content)
        if zeros or code not in _TYPES:
            raise ValueError(f"expected an idx file, got one that starts with {content[:4]!r}")
        shape = struct.unpack_from(f">{rank}I", content, 4)
        kind = np.dtype(_TYPES[code])
        numbers = content[4 + 4 * rank :]
        if len(numbers) != kind.itemsize * np.prod(shape, dtype=np.int64):
            raise ValueError(f"expected numbers of shape {shape}, got {len(numbers)} bytes of them")
        return np.frombuffer(numbers, kind).reshape(shape).astype(kind.newbyteorder("="))
