"""Read the fields of a certificate, and limit the memory that a file gets by the size of the file."""

from __future__ import annotations

import base64

import numpy as np

# Bytes of arrays larger than their fields: for any file, and for each byte of the file.
SPARE, GROWTH = 2**28, 256
CHUNK = 2**8  # leaves that are checked together


class Rejected(ValueError):
    """The certificate does not prove what it says."""


def require(condition, message):
    if not np.all(condition):
        raise Rejected(message)


def held(part):
    """Return the bytes of text in a part of a file, a number counted as 8."""
    if isinstance(part, dict | list):
        return sum(map(held, part.values() if isinstance(part, dict) else part))
    return len(part) if isinstance(part, str) else 8


def afford(numbers, size):
    """Require that so many bytes of a file are enough for so many numbers, before memory is asked for."""
    require(8 * numbers <= SPARE + GROWTH * size, "a file of this size gets less memory than it asks for")


def array(field, dtype, *shape, finite=True):
    """Read the array of a field {"dtype", "shape", "base64"}; a None in ``shape`` stands for any size."""
    require(field["dtype"] == dtype, f"expected {dtype}, got {field['dtype']}")
    raw = base64.b64decode(field["base64"], validate=True)
    values = np.frombuffer(raw, np.dtype(dtype).newbyteorder("<")).reshape(field["shape"])
    fits = len(shape) == values.ndim and all(n in (None, m) for n, m in zip(shape, values.shape, strict=True))
    require(fits and (not finite or np.isfinite(values).all()), f"expected finite numbers, {shape}")
    return values


def table(field, batch, *shape):
    """Read the weights of each instance, (batch, *shape), or shared weights (1, *shape)."""
    shared = len(field["shape"]) == len(shape)
    return array(field, "float64", *shape)[None] if shared else array(field, "float64", batch, *shape)


def excess(rules, spins):
    """Return the largest excess of a rule's least sum over its bound, ± rounding errors, (2, leaves)."""
    matrix = array(rules["matrix"], "float64", None, spins.shape[1])
    bounds = array(rules["bounds"], "float64", len(matrix))
    error = (np.abs(matrix).sum(1) + np.abs(bounds)) * (spins.shape[1] + 2) * 2.0**-50
    ends = np.empty((2, len(spins)))
    for start in range(0, len(spins), CHUNK):
        part = spins[start : start + CHUNK]
        over = (part > 0) @ matrix.T + (part == 0) @ np.minimum(matrix, 0).T - bounds
        both = over - error, over + error
        ends[:, start : start + CHUNK] = [each.max(1, initial=-np.inf) for each in both]
    return ends
