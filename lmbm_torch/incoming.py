"""Files from anywhere: text of every usual encoding, plain or compressed, and limits of size.

Limits hold for long lines, compressed files and arrays that a header announces. This module is internal and
may change; no import of torch is needed.
"""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import math
import tokenize
import warnings
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, AnyStr, Generic

import numpy as np

LONGEST_LINE = 2**25
"""Most characters of a line."""


# Exceptions of damaged or unreadable files, besides ValueError.
UNREADABLE = (OSError, EOFError, zlib.error)
COMPRESSED = (".gz", ".bz2")
"""Endings of compressed files; the first bytes of a file decide."""
# Byte-order marks.
_MARKS = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
# The encoding of Windows' programs in western Europe and America.
_OF_WINDOWS = "cp1252"

__all__ = []


class LimitedLines(Generic[AnyStr]):
    """The lines of a stream, each of at most ``LONGEST_LINE`` characters.

    ``number`` is the number of the last line, from 1.

    Raises:
        ValueError: a longer line; the message has the line number.
    """

    def __init__(self, stream: IO[AnyStr]) -> None:
        self._stream, self.number = stream, 0

    def __iter__(self) -> Iterator[AnyStr]:
        while line := self._stream.readline(LONGEST_LINE + 1):
            self.number += 1
            if len(line) > LONGEST_LINE:
                raise ValueError(f"line {self.number}: expected at most {LONGEST_LINE} characters, got more")
            yield line


@contextmanager
def lines(file: Path, encoding: str | None = None) -> Iterator[LimitedLines[str]]:
    """Open the lines of a text file, plain or compressed by gzip or bzip2, with the line ends of the file.

    Args:
        encoding: see :func:`encoding_of`.

    Raises:
        UnicodeDecodeError: bytes that are no text in the encoding.
        ValueError: an unknown encoding; see also :class:`LimitedLines` and :func:`open_compressed`.
    """
    chosen = encoding_of(file, encoding)
    with io.TextIOWrapper(open_compressed(file), encoding=chosen, newline="") as text:
        yield LimitedLines(text)


def encoding_of(file: Path, asked: str | None = None) -> str:
    """Return the encoding of a text file; a byte-order mark comes first.

    Args:
        asked: by default UTF-8, or for other bytes the encoding of Windows, cp1252.

    Raises:
        ValueError: an unknown encoding.

    Warns:
        UserWarning: other bytes than UTF-8, by default.
    """
    with open_compressed(file) as stream:
        start = stream.read(3)
    if marked := [name for mark, name in _MARKS.items() if start.startswith(mark)]:
        return marked[0]
    if asked is not None:
        try:
            return codecs.lookup(asked).name
        except LookupError as error:
            raise ValueError(f"encoding: expected a name such as cp1252, got {asked!r}") from error
    if (strange := _strange(file)) is None:
        return "utf-8"
    number, line = strange
    warnings.warn(
        f"{file.name}: expected text in UTF-8, got other bytes in line {number}, read as {_OF_WINDOWS}: "
        f"{line.decode(_OF_WINDOWS, 'replace').strip()[:60]!r}; a file in UTF-8 needs no guess",
        UserWarning,
        stacklevel=4,
    )
    return _OF_WINDOWS


def _strange(file: Path) -> tuple[int, bytes] | None:
    """Return the number and the bytes of the first line in another encoding than UTF-8; None without."""
    with open_compressed(file) as stream:
        found = LimitedLines(stream)
        for line in found:
            try:
                line.decode("utf-8")
            except UnicodeDecodeError:
                return found.number, line
    return None


def title(file: Path) -> str:
    """Return the name of a file without ending, and without the ending of a compression."""
    return (Path(file.stem) if file.suffix.lower() in COMPRESSED else file).stem


def ending(file: Path) -> str:
    """Return the ending of a file in small letters, without the ending of a compression."""
    return (Path(file.stem) if file.suffix.lower() in COMPRESSED else file).suffix.lower()


# Multiple of the compressed size; tables of text shrink to 1/10, matrices of mostly zeros to 1/100.
MOST_GROWTH = 200
# Bytes allowed for every file.
ALWAYS_ALLOWED = 2**28


def open_compressed(file: Path) -> IO[bytes]:
    """Open a file, plain or compressed by gzip or bzip2, for reading up to a limit of decompressed bytes.

    Raises:
        OSError: the file cannot be opened.
        ValueError: on reading, more than 256 MiB and more than 200 times the size of the file.
    """
    stream = file.open("rb")
    start = stream.peek(10)[:10]
    opened: Any = None
    if start.startswith(b"\x1f\x8b"):
        opened = gzip.open
    elif start.startswith(b"BZh") and start[4:] == b"1AY&SY":
        opened = bz2.open
    if opened is None:
        return stream
    stream.close()
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
    """The stream of a compressed file, with an error at the limit of decompressed bytes."""

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
