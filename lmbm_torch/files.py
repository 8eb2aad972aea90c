"""Files written completely or not at all, and errors with the name of the file."""

from __future__ import annotations

import errno
import json
import math
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from os import PathLike
from pathlib import Path
from typing import Any, BinaryIO, Literal, TextIO

try:
    import fcntl
except ImportError:  # Windows has no fcntl; an open file cannot be removed there.
    fcntl = None

UNFINISHED = ".unfinished"
# Names of the files in the directory of a training run.
CONFIG, CHECKPOINT, METRICS, RULES = "config.yaml", "last.ckpt", "metrics.json", "rules.txt"
MODEL = "model.safetensors"
Mode = Literal["x", "w"]
"""As in ``open``: ``"x"`` refuses an existing file, ``"w"`` replaces the file."""


def check_free(path: str | PathLike, mode: Mode = "x") -> None:
    """Raise FileExistsError if ``path`` exists and ``mode`` does not allow replacing the file."""
    if mode == "x" and os.path.lexists(path):
        raise FileExistsError(f"path: expected a path without a file, but {os.fspath(path)} exists")


@contextmanager
def reading(path: str | PathLike, *errors: type[Exception], argument: str = "path") -> Iterator[Path]:
    """Check the existence of a file, and name the file in errors of the block.

    Raises:
        FileNotFoundError: the file does not exist.
        ValueError: the block raised a ValueError or one of ``errors``; the message names argument and file.
    """
    file = Path(path)
    if not file.is_file():
        found = "a folder" if file.is_dir() else "none"
        raise FileNotFoundError(f"{argument}: expected a file, found {found} at {file}")
    try:
        yield file
    except UnicodeDecodeError as error:
        named = "UTF-8 or cp1252" if error.encoding in ("utf-8", "charmap") else error.encoding
        raise ValueError(
            f"{argument}: {file}: expected text in {named}, got other bytes such as 0x"
            f"{error.object[error.start]:02x}; save the file as UTF-8, or convert the file (iconv -t utf-8)"
        ) from error
    except (ValueError, *errors) as error:
        raise ValueError(f"{argument}: {file}: {error or type(error).__name__}") from error


@contextmanager
def replacing(path: str | PathLike, mode: Mode = "w") -> Iterator[BinaryIO]:
    """Open a stream whose content replaces the file ``path`` when the block ends without an error.

    Several processes and threads may write to a path at once: readers always find a complete file. In mode
    ``"x"`` exactly one process succeeds. After an error the old file is still there. A killed process may
    leave ``<path>.<random>.unfinished``, which the next writer of the path removes. A new file has the
    permissions of the umask, a replaced file keeps the old permissions. If ``path`` is a symbolic link, its
    target is replaced, not the link.

    Raises:
        FileExistsError: the file exists, in mode ``"x"``.
        OSError: the content cannot be written, such as on a full disk; the message names the file.
    """
    check_free(path, mode)
    file = Path(path)
    if file.is_symlink():
        file = file.resolve()
    unfinished = None
    try:
        unfinished, opened = _unfinished(file)
        with opened as stream:
            if mode == "w":
                _copy_permissions(file, stream)
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
            if mode == "x":
                _publish_new(unfinished, file)
            else:
                unfinished.replace(file)
    except BaseException as error:
        if unfinished is not None:
            with suppress(OSError):
                unfinished.unlink()
        # Name ``path`` in the error: errors of writing name no file, errors of opening the unfinished file.
        if isinstance(error, OSError) and error.errno and _is_unfinished(error.filename or unfinished, file):
            message = f"{error.strerror}; an older file of this name is kept"
            raise OSError(error.errno, message, str(file)) from error
        raise


def _unfinished(file: Path) -> tuple[Path, BinaryIO]:
    """Create and lock a new file next to ``file`` for a single writer."""
    _remove_abandoned(file)
    while True:
        path = file.with_name(f"{file.name}.{secrets.token_hex(4)}{UNFINISHED}")
        stream = path.open("xb")
        if fcntl is None:
            return path, stream
        with suppress(OSError):  # A file system may have no locks; then abandoned files are not removed.
            fcntl.flock(stream, fcntl.LOCK_EX)
        # Another writer may have removed the file before it was locked: then try again.
        if os.fstat(stream.fileno()).st_nlink:
            return path, stream
        stream.close()


def _copy_permissions(file: Path, stream: BinaryIO) -> None:
    """Copy the permissions of a file to the empty new file."""
    # Ignore errors: the file system may have no permissions, or the file may belong to another user.
    with suppress(OSError, AttributeError):
        os.fchmod(stream.fileno(), file.stat().st_mode & 0o777)


def _is_unfinished(path: Any, file: Path) -> bool:
    """Return whether a path is an unfinished version of ``file``."""
    name = Path(str(path)).name
    return name.startswith(f"{file.name}.") and name.endswith(UNFINISHED)


def _remove_abandoned(file: Path) -> None:
    """Remove unfinished files without a lock: the lock of a killed writer has ended with the process."""
    if fcntl is None or not file.parent.is_dir():
        return
    for path in file.parent.iterdir():
        if _is_unfinished(path, file):
            with suppress(OSError), path.open("rb") as stream:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()


def _publish_new(unfinished: Path, file: Path) -> None:
    """Give a finished file the final name, in a single atomic step."""
    try:
        os.link(unfinished, file)
    except FileExistsError:
        check_free(file, "x")
        raise
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS):
            raise
        # The file system has no hard links: reserve the name by an empty file, then replace the empty file.
        with file.open("xb"):
            pass
        unfinished.replace(file)
    else:
        unfinished.unlink()


@contextmanager
def replacing_text(path: str | PathLike, mode: Mode = "w") -> Iterator[TextIO]:
    """Open a stream of UTF-8 text by :func:`replacing`; line ends are written as given."""
    with replacing(path, mode) as stream:
        text = TextIOWrapper(stream, encoding="utf-8", newline="")
        try:
            yield text
        finally:
            # Write the buffer and leave the binary stream open, which ``replacing`` closes.
            text.detach()


def write_text(path: str | PathLike, text: str, mode: Mode = "w") -> None:
    """Write a text file by :func:`replacing_text`."""
    with replacing_text(path, mode) as stream:
        stream.write(text)


def write_figure(path: str | PathLike, figure: Any, dpi: int = 120) -> None:
    """Write a matplotlib figure by :func:`replacing`, in the format of the file's suffix."""
    with replacing(path) as stream:
        figure.savefig(stream, format=Path(path).suffix[1:], dpi=dpi)


def write_metrics(path: Path, metrics: Mapping[str, float]) -> None:
    """Write metrics as JSON, with null for undefined metrics; the file appears complete or not at all."""
    defined = {name: value if math.isfinite(value) else None for name, value in metrics.items()}
    write_text(path, json.dumps(defined, indent=2, allow_nan=False) + "\n")
