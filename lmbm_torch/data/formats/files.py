"""One wording for every file that is missing or cannot be read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path


@contextmanager
def reading(path: str | PathLike, *errors: type[Exception], argument: str = "path") -> Iterator[Path]:
    """Open the door to a file and name it in whatever goes wrong behind.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: a ValueError or one of ``errors`` came up inside; the message names argument and file.
    """
    file = Path(path)
    if not file.is_file():
        found = "a folder" if file.is_dir() else "none"
        raise FileNotFoundError(f"{argument}: expected a file, found {found} at {file}")
    try:
        yield file
    except (ValueError, *errors) as error:
        raise ValueError(f"{argument}: {file}: {error or type(error).__name__}") from error
