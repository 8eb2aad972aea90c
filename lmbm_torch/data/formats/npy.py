"""The headers of npy files, checked before memory is taken for the arrays that they announce."""

from __future__ import annotations

import math
import tokenize
from typing import IO

import numpy as np

_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
# Errors of numpy's parser of a header, beside ValueError.
_DAMAGE = (MemoryError, RecursionError, SyntaxError, TypeError, tokenize.TokenError)


def read_header(stream: IO[bytes], size: int) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Shape, whether in Fortran's order, and dtype; the stream is left at the first number.

    Args:
        size: of the whole file, in bytes, which must be what the header announces: memory for an array is
            taken before any of it is read.

    Raises:
        ValueError: no npy file, one of another version, or one of another size.
    """
    version = np.lib.format.read_magic(stream)
    if version not in _HEADERS:
        raise ValueError(f"expected an npy file of version 1.0 or 2.0, got {version}")
    try:
        shape, is_fortran, dtype = _HEADERS[version](stream)
    except _DAMAGE as error:
        raise ValueError(f"expected the header of an npy file: {type(error).__name__}") from error
    count = math.prod(shape)
    # Objects are pickled, and take whatever room they take: no reader lets them in.
    if not dtype.hasobject and size != stream.tell() + count * dtype.itemsize:
        raise ValueError(f"expected {count} numbers as its header says, got {size} bytes in all")
    return shape, is_fortran, dtype
