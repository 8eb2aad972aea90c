"""Files that appear whole or not at all, even if the process is killed, and errors that name their file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from os import PathLike
from pathlib import Path
from typing import Any, BinaryIO, Literal, TextIO

UNFINISHED = ".unfinished"
Mode = Literal["x", "w"]
"""Same as in ``open``: ``"x"`` refuses a file that exists, ``"w"`` replaces it."""


def check_free(path: str | PathLike, mode: Mode = "x") -> None:
    """Raise FileExistsError if ``path`` exists and ``mode`` does not allow replacing it."""
    if mode == "x" and os.path.lexists(path):
        raise FileExistsError(f"path: expected nothing there yet, but {os.fspath(path)} exists")


@contextmanager
def reading(path: str | PathLike, *errors: type[Exception], argument: str = "path") -> Iterator[Path]:
    """Check that a file exists, and name it in the errors that are raised inside.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: a ValueError or one of ``errors`` was raised inside; the message names argument and file.
    """
    file = Path(path)
    if not file.is_file():
        found = "a folder" if file.is_dir() else "none"
        raise FileNotFoundError(f"{argument}: expected a file, found {found} at {file}")
    try:
        yield file
    except (ValueError, *errors) as error:
        raise ValueError(f"{argument}: {file}: {error or type(error).__name__}") from error


@contextmanager
def replacing(path: str | PathLike, mode: Mode = "w") -> Iterator[BinaryIO]:
    """A stream whose content replaces ``path`` once it is on the disk; until then the older file stays.

    After an error the older file is still there. A killed process may leave ``<path>.unfinished`` beside it,
    which the next one overwrites.

    Raises:
        FileExistsError: the file exists, in mode ``"x"``.
        OSError: the content cannot be written, such as on a full disk; the message names the file.
    """
    check_free(path, mode)
    file = Path(path)
    unfinished = file.with_name(file.name + UNFINISHED)
    try:
        with unfinished.open("wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        # The check is repeated, since the content may have taken long to make.
        check_free(path, mode)
        unfinished.replace(file)
    except BaseException as error:
        with suppress(OSError):
            unfinished.unlink()
        # A failed write does not name the file, and opening names the unfinished one.
        if isinstance(error, OSError) and error.errno and error.filename in (None, str(unfinished)):
            message = f"{error.strerror}; what was there before is kept"
            raise OSError(error.errno, message, str(file)) from error
        raise


@contextmanager
def replacing_text(path: str | PathLike, mode: Mode = "w") -> Iterator[TextIO]:
    """:func:`replacing` for UTF-8 text, with line ends as they are written."""
    with replacing(path, mode) as stream:
        text = TextIOWrapper(stream, encoding="utf-8", newline="")
        try:
            yield text
        finally:
            # Writes what is buffered, and leaves the stream open.
            text.detach()


def write_text(path: str | PathLike, text: str, mode: Mode = "w") -> None:
    """A text file by :func:`replacing_text`."""
    with replacing_text(path, mode) as stream:
        stream.write(text)


def write_figure(path: str | PathLike, figure: Any, dpi: int = 120) -> None:
    """A figure of matplotlib by :func:`replacing`, in the format that the file's ending names."""
    with replacing(path) as stream:
        figure.savefig(stream, format=Path(path).suffix[1:], dpi=dpi)
