"""A reader of files to fuzz, and the rule that holds for all of them."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NUMBERS = (b"nan", b"-inf", b"1e999", b"-1", b"99999999999999999999", b"?", b"\x00", b"\xff")


@dataclass(frozen=True)
class Target:
    """A reader.

    Args:
        place: where its file lies in a folder.
        valid: what a small file of its format holds.
        read: the folder → the record.
        words: what means something in the format.
    """

    place: str
    valid: bytes
    read: Callable[[Path], Any]
    words: tuple[bytes, ...] = ()


def refused(target: Target, folder: Path, content: bytes) -> bool:
    """Return whether the reader refuses a file of this content.

    Raises:
        AssertionError: it refuses without naming the file.
        Exception: whatever else comes up than a ValueError, or a FileNotFoundError of a file that this one
            speaks of: what fuzzing looks for.

    Only the warning of text in another encoding than UTF-8, which names the file, is no failure.
    """
    file = folder / target.place
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
    guessed = (
        rf"{re.escape(file.name)}: expected text in UTF-8, got other bytes in line \d+; reading as cp1252: "
    )
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", guessed, UserWarning)
            target.read(folder)
    except (ValueError, FileNotFoundError) as error:
        # The error may name the file beside this one, which lacks something that this one refers to.
        if file.name.partition(".")[0] not in str(error):
            raise AssertionError(f"{file.name} is not named: {error}") from error
        return True
    return False
