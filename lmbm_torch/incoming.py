"""Readers of files from untrusted sources: text in usual encodings, plain or compressed, of limited size.

The limits hold for the length of a line, the size of a file after decompression, and the size of an array
that a header announces. This module is internal and may change; it does not import torch.
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
"""Largest number of characters in a line."""


# Exceptions, besides ValueError, that reading a damaged file raises.
UNREADABLE = (OSError, EOFError, zlib.error)
COMPRESSED = (".gz", ".bz2")
"""Endings of compressed files, which :func:`title` and :func:`ending` remove."""
# Byte-order marks at the start of a file, and the encodings of such files.
_MARKS = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
# Encoding to try if a text is not UTF-8: the encoding of Windows programs in western Europe and America.
_OF_WINDOWS = "cp1252"

__all__ = []


class LimitedLines(Generic[AnyStr]):
    """An iterable of a stream's lines, each of at most ``LONGEST_LINE`` characters.

    ``number`` is the number of the line read last; the first line has number 1.

    Raises:
        ValueError: a line is too long; the message gives the number of the line.
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
        UnicodeDecodeError: the bytes are not text in the encoding.
        ValueError: the encoding is unknown; see also :class:`LimitedLines` and :func:`open_compressed`.
    """
    chosen = encoding_of(file, encoding)
    with io.TextIOWrapper(open_compressed(file), encoding=chosen, newline="") as text:
        yield LimitedLines(text)


def encoding_of(file: Path, asked: str | None = None) -> str:
    """Return the encoding of a text file; a byte-order mark overrides ``asked``.

    Args:
        asked: the encoding. If None, the result is UTF-8 if the file is valid UTF-8, else cp1252 of Windows.

    Raises:
        ValueError: the encoding is unknown.

    Warns:
        UserWarning: ``asked`` is None, and the file is not valid UTF-8.
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
        f"{file.name}: expected text in UTF-8, got other bytes in line {number}; reading as {_OF_WINDOWS}: "
        f"{line.decode(_OF_WINDOWS, 'replace').strip()[:60]!r}; to avoid this guess, save the file as UTF-8",
        UserWarning,
        stacklevel=4,
    )
    return _OF_WINDOWS


def _strange(file: Path) -> tuple[int, bytes] | None:
    """Return the number and the bytes of the first line that is not valid UTF-8; None if there is none."""
    with open_compressed(file) as stream:
        found = LimitedLines(stream)
        for line in found:
            try:
                line.decode("utf-8")
            except UnicodeDecodeError:
                return found.number, line
    return None


def title(file: Path) -> str:
    """Return the name of a file without the ending, such as "a" for "a.csv" and "a.csv.gz"."""
    return (Path(file.stem) if file.suffix.lower() in COMPRESSED else file).stem


def ending(file: Path) -> str:
    """Return the ending of a file in lower case, such as ".csv" for "a.csv" and "a.CSV.gz"."""
    return (Path(file.stem) if file.suffix.lower() in COMPRESSED else file).suffix.lower()


# Largest allowed ratio of decompressed to compressed bytes. Usual ratios are 10 for tables of text and 100
# for matrices of mostly zeros.
MOST_GROWTH = 200
# Number of decompressed bytes allowed for every file, whatever the ratio.
ALWAYS_ALLOWED = 2**28


def open_compressed(file: Path) -> IO[bytes]:
    """Open a file, plain or compressed by gzip or bzip2, for reading up to a limit of decompressed bytes.

    Raises:
        OSError: the file cannot be opened.
        ValueError: reading gives more than 256 MiB and more than 200 times the size of the file.
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
    """Raise ValueError if the unpacked entries of a zip archive are too large for the size of the file."""
    check_growth(file, sum(entry.file_size for entry in archive.infolist()))


def check_growth(file: Path, size: int) -> None:
    """Raise ValueError if ``size``, the number of unpacked bytes, is too large for the size of the file."""
    if size > (most := _most(file)):
        raise ValueError(_refusal(file, most))


def _most(file: Path) -> int:
    return max(ALWAYS_ALLOWED, MOST_GROWTH * file.stat().st_size)


def _refusal(file: Path, most: int) -> str:
    return (
        f"expected at most {most} unpacked bytes in a file of {file.stat().st_size} bytes, got more; "
        "if you trust the file, unpack the file first, or save the data without compression"
    )


class _Limited(io.RawIOBase):
    """The stream of a compressed file; reading beyond the limit of decompressed bytes raises ValueError."""

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
# Exceptions, besides ValueError, that numpy raises for damaged headers.
_DAMAGE = (MemoryError, RecursionError, SyntaxError, TypeError, tokenize.TokenError)


def read_header(stream: IO[bytes], size: int) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Read the header of an npy file; return the shape, whether in Fortran order, and the dtype.

    The next read from the stream starts at the first number of the array.

    Args:
        size: size of the whole file in bytes. The header must announce this size, because memory for an array
            is taken before the numbers are read.

    Raises:
        ValueError: the stream is not an npy file of version 1.0 or 2.0, or the header announces another size.
    """
    version = np.lib.format.read_magic(stream)
    if version not in _HEADERS:
        raise ValueError(f"expected an npy file of version 1.0 or 2.0, got {version}")
    try:
        shape, is_fortran, dtype = _HEADERS[version](stream)
    except _DAMAGE as error:
        raise ValueError(f"expected the header of an npy file, got a {type(error).__name__}") from error
    count = math.prod(shape)
    # Skip the check for arrays of objects, which have no fixed size; every reader refuses them.
    if not dtype.hasobject and size != stream.tell() + count * dtype.itemsize:
        raise ValueError(f"expected {count} numbers as the header says, got a file of {size} bytes")
    return shape, is_fortran, dtype
