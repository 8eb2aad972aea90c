"""Lines of certificate files: JSON with arrays in base64, and hashes of problems. This module is internal."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any

import numpy as np
import torch
from torch import Tensor

__all__ = []

FORMAT = "lmbm certificate 1"


def line(claim: str, problem: dict[str, Any], proof: dict[str, Any]) -> bytes:
    """Return the file's line for a problem and a proof; the claim is "decoding" or "training"."""
    record = {"format": FORMAT, "claim": claim, "problem": problem, "proof": proof}
    return json.dumps(record, separators=(",", ":")).encode() + b"\n"


def field(values: Any, dtype: type = np.float64) -> dict[str, Any]:
    """Convert an array to JSON: the dtype, the shape, and the little-endian bytes in base64."""
    plain = np.asarray(values.detach().cpu() if isinstance(values, Tensor) else values)
    text = base64.b64encode(np.ascontiguousarray(plain, np.dtype(dtype).newbyteorder("<")).tobytes()).decode()
    return {"dtype": np.dtype(dtype).name, "shape": list(plain.shape), "base64": text}


def array(field: dict[str, Any]) -> np.ndarray:
    """Convert the JSON that :func:`field` returns back to an array."""
    dtype = np.dtype(field["dtype"]).newbyteorder("<")
    return np.frombuffer(base64.b64decode(field["base64"]), dtype).reshape(field["shape"])


def double(values: Tensor) -> np.ndarray:
    """Convert a tensor to an array of float64."""
    return values.detach().cpu().to(torch.float64).numpy()


def name(problem: dict[str, Any]) -> str:
    """Return the name of the problem of one line: a SHA-256 in hexadecimal digits."""
    return hashlib.sha256(json.dumps(problem, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def joined(names: list[str]) -> str:
    """Return the name of a file's problems: the SHA-256 of the names of all lines."""
    return hashlib.sha256("".join(names).encode()).hexdigest()
