"""Limits of size for files from anywhere: long lines, compressed files, arrays that a header announces."""

from __future__ import annotations

import bz2
import gzip
import io
import math
import tokenize
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, AnyStr, Generic

import numpy as np

LONGEST_LINE = 2**25
"""Most characters of a line."""


class LimitedLines(Generic[AnyStr]):
    """The lines of a stream, none of which may be longer than ``LONGEST_LINE``.

    Raises:
        ValueError: a longer line; the message has the line number.
    """

    def __init__(self, stream: IO[AnyStr]) -> None:
        self._stream = stream

    def __iter__(self) -> Iterator[AnyStr]:
        number = 0
        while line := self._stream.readline(LONGEST_LINE + 1):
            number += 1
            if len(line) > LONGEST_LINE:
                raise ValueError(f"line {number}: expected at most {LONGEST_LINE} characters, got more")
            yield line

    def read(self, size: int = -1) -> AnyStr:
        """Read from the stream; libraries recognise a stream by this method."""
        return self._stream.read(size)


# Multiple of the compressed size; tables of text shrink to 1/10, matrices of mostly zeros to 1/100.
MOST_GROWTH = 200
# Bytes allowed for every file.
ALWAYS_ALLOWED = 2**28


def open_compressed(file: Path, kind: str | None = None) -> IO[bytes]:
    """Open a file, plain or compressed, for reading up to a limit of decompressed bytes.

    Args:
        kind: ``".gz"``, ``".bz2"`` or another ending for a plain file; by default the ending of the file.

    Raises:
        OSError: the file cannot be opened.
        ValueError: on reading, more than 256 MiB and more than 200 times the size of the file.
    """
    opened = {".gz": gzip.open, ".bz2": bz2.open}.get((kind or file.suffix).lower())
    if opened is None:
        return file.open("rb")
    return io.BufferedReader(_Limited(opened(file, "rb"), file))


def check_archive(file: Path, archive: zipfile.ZipFile) -> None:
    """Raise ValueError if the entries of a zip archive are together too large for the size of the file."""
    size, most = sum(entry.file_size for entry in archive.infolist()), _most(file)
    if size > most:
        raise ValueError(_refusal(file, most))


def _most(file: Path) -> int:
    return max(ALWAYS_ALLOWED, MOST_GROWTH * file.stat().st_size)


def _refusal(file: Path, most: int) -> str:
    return (
        f"expected at most {most} bytes in a compressed file of {file.stat().st_size}, got more: if you know "
        "who wrote it, unpack it first, or write it without compression"
    )


class _Limited(io.RawIOBase):
    """The stream of a compressed file, which ends with an error at the limit of decompressed bytes."""

    def __init__(self, stream: Any, file: Path) -> None:
        self._stream, self._file, self._left = stream, file, _most(file)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        part = self._stream.read(len(buffer))
        self._left -= len(part)
        if self._left < 0:
            raise ValueError(_refusal(self._file, _most(self._file)))
        buffer[: len(part)] = part
        return len(part)

    def close(self) -> None:
        self._stream.close()
        super().close()


_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
# Errors of numpy's parser of a header, besides ValueError.
_DAMAGE = (MemoryError, RecursionError, SyntaxError, TypeError, tokenize.TokenError)


def read_header(stream: IO[bytes], size: int) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Read the header of an npy file: shape, whether in Fortran order, and dtype.

    The stream is left at the first number.

    Args:
        size: of the whole file in bytes. The header must announce this size, because memory for an array is
            taken before the numbers are read.

    Raises:
        ValueError: no npy file, another version, or another size.
    """
    version = np.lib.format.read_magic(stream)
    if version not in _HEADERS:
        raise ValueError(f"expected an npy file of version 1.0 or 2.0, got {version}")
    try:
        shape, is_fortran, dtype = _HEADERS[version](stream)
    except _DAMAGE as error:
        raise ValueError(f"expected the header of an npy file: {type(error).__name__}") from error
    count = math.prod(shape)
    # Objects are pickled and have no fixed size; every reader refuses objects.
    if not dtype.hasobject and size != stream.tell() + count * dtype.itemsize:
        raise ValueError(f"expected {count} numbers as its header says, got {size} bytes in all")
    return shape, is_fortran, dtype
