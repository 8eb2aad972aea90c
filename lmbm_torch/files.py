"""Files that appear whole or not at all, even if the process is killed or the disk is full."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import BinaryIO

UNFINISHED = ".unfinished"


@contextmanager
def replacing(path: str | PathLike) -> Iterator[BinaryIO]:
    """A stream whose content replaces ``path`` once it is on the disk; until then the older file stays.

    A killed process may leave ``<path>.unfinished`` beside it, which the next one overwrites.

    Raises:
        OSError: the content cannot be written, such as on a full disk; the message names the file.
    """
    file = Path(path)
    unfinished = file.with_name(file.name + UNFINISHED)
    try:
        with unfinished.open("wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        unfinished.replace(file)
    except OSError as error:
        unfinished.unlink(missing_ok=True)
        # A failed write knows no name.
        raise OSError(error.errno, f"{error.strerror}; what was there before is kept", str(file)) from error
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
