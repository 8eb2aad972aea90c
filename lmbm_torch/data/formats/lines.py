"""Lines of text files, of which a few compressed megabytes can hold one that does not fit into memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO, AnyStr, Generic

__all__ = ["LONGEST_LINE", "LimitedLines"]

LONGEST_LINE = 2**25
"""Characters of a line at most."""


class LimitedLines(Generic[AnyStr]):
    """A stream's lines, of which none is read that is longer than any table's.

    Raises:
        ValueError: a longer line; the message has its number.
    """

    def __init__(self, stream: IO[AnyStr]) -> None:
        self._stream = stream

    def __iter__(self) -> Iterator[AnyStr]:
        number = 0
        while line := self._stream.readline(LONGEST_LINE + 1):
            number += 1
            if len(line) > LONGEST_LINE:
                raise ValueError(f"line {number}: expected at most {LONGEST_LINE} characters, got more")
            yield line

    def read(self, size: int = -1) -> AnyStr:
        """By which others' readers know a stream."""
        return self._stream.read(size)
