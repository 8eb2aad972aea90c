"""Files that appear whole or not at all, even if the process is killed, and errors that name their file."""

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
except ImportError:  # Windows, where a file that is open cannot be removed in the first place.
    fcntl = None

UNFINISHED = ".unfinished"
# Of a run's directory.
CONFIG, CHECKPOINT, METRICS, RULES = "config.yaml", "last.ckpt", "metrics.json", "rules.txt"
MODEL = "model.safetensors"
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
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{argument}: {file}: expected text in UTF-8, got bytes that are none, such as 0x"
            f"{error.object[error.start]:02x}; save it as UTF-8, or convert it (of Windows' encoding "
            "by iconv -f cp1252 -t utf-8)"
        ) from error
    except (ValueError, *errors) as error:
        raise ValueError(f"{argument}: {file}: {error or type(error).__name__}") from error


@contextmanager
def replacing(path: str | PathLike, mode: Mode = "w") -> Iterator[BinaryIO]:
    """A stream whose content replaces ``path`` once it is on the disk; until then the older file stays.

    Several processes and threads may write one path at once: readers find one content or another, whole. In
    mode ``"x"`` exactly one of them succeeds. After an error the older file is still there. A killed process
    may leave ``<path>.<random>.unfinished`` beside it, which the next writer of that path removes. A new file
    has the permissions that the umask leaves, a replaced one those of the older file. Where ``path`` is a
    symbolic link the file that it leads to is written.

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
        # A failed write does not name the file, and opening names the unfinished one.
        if isinstance(error, OSError) and error.errno and _is_unfinished(error.filename or unfinished, file):
            message = f"{error.strerror}; what was there before is kept"
            raise OSError(error.errno, message, str(file)) from error
        raise


def _unfinished(file: Path) -> tuple[Path, BinaryIO]:
    """A new file beside ``file`` that no other writer has, locked while it is open."""
    _remove_abandoned(file)
    while True:
        path = file.with_name(f"{file.name}.{secrets.token_hex(4)}{UNFINISHED}")
        stream = path.open("xb")
        if fcntl is None:
            return path, stream
        with suppress(OSError):  # A file system without locks: nothing is ever taken for abandoned there.
            fcntl.flock(stream, fcntl.LOCK_EX)
        # Another writer may have taken it for abandoned before it was locked.
        if os.fstat(stream.fileno()).st_nlink:
            return path, stream
        stream.close()


def _copy_permissions(file: Path, stream: BinaryIO) -> None:
    """Give what is to replace a file that file's permissions, before anything is in it."""
    # A file system that has none, or where they are not ours to give.
    with suppress(OSError, AttributeError):
        os.fchmod(stream.fileno(), file.stat().st_mode & 0o777)


def _is_unfinished(path: Any, file: Path) -> bool:
    """Whether a path is that of an unfinished version of ``file``."""
    name = Path(str(path)).name
    return name.startswith(f"{file.name}.") and name.endswith(UNFINISHED)


def _remove_abandoned(file: Path) -> None:
    """Remove the unfinished files of writers that were killed: locks end with the process that held them."""
    if fcntl is None or not file.parent.is_dir():
        return
    for path in file.parent.iterdir():
        if _is_unfinished(path, file):
            with suppress(OSError), path.open("rb") as stream:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()


def _publish_new(unfinished: Path, file: Path) -> None:
    """Give a finished file its name, in one step that fails if the name is taken."""
    try:
        os.link(unfinished, file)
    except FileExistsError:
        check_free(file, "x")
        raise
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS):
            raise
        # A file system without hard links: the name is claimed by an empty file first.
        with file.open("xb"):
            pass
        unfinished.replace(file)
    else:
        unfinished.unlink()


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


def write_metrics(path: Path, metrics: Mapping[str, float]) -> None:
    """Write metrics as JSON, null for undefined ones; the file appears complete or not at all."""
    defined = {name: value if math.isfinite(value) else None for name, value in metrics.items()}
    write_text(path, json.dumps(defined, indent=2, allow_nan=False) + "\n")
