"""Compressed files, of which a few kilobytes can hold more than fits into memory."""

from __future__ import annotations

import bz2
import gzip
import io
import zipfile
from pathlib import Path
from typing import IO, Any

__all__ = ["check_archive", "open_compressed"]

# Of the compressed size; tables of texts shrink to a tenth, matrices of mostly zeros to a hundredth.
MOST_GROWTH = 200
# Bytes that any file may grow to.
ALWAYS_ALLOWED = 2**28


def open_compressed(file: Path, kind: str | None = None) -> IO[bytes]:
    """Open a file, plain or compressed; reading ends with an error where it has grown beyond all measure.

    Args:
        kind: ``".gz"``, ``".bz2"`` or another ending for a plain file; by default the file's own.

    Raises:
        OSError: it cannot be opened.
        ValueError: on reading, more than 256 MiB and 200 times the file's size.
    """
    opened = {".gz": gzip.open, ".bz2": bz2.open}.get((kind or file.suffix).lower())
    if opened is None:
        return file.open("rb")
    return io.BufferedReader(_Limited(opened(file, "rb"), file))


def check_archive(file: Path, archive: zipfile.ZipFile) -> None:
    """Raise ValueError if the entries of a zip archive are together too large for its file."""
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
    """A compressed file's stream, of which no more bytes are read than the file may grow to."""

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
