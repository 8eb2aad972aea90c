"""Errors for files that are missing or cannot be read, in one wording."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path


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
