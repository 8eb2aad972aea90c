"""Metrics as a file."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path

from lmbm_torch.files import replacing


def write_metrics(path: Path, metrics: Mapping[str, float]) -> None:
    """Write metrics as JSON, null where undefined; the file appears complete or not at all."""
    defined = {name: value if math.isfinite(value) else None for name, value in metrics.items()}
    with replacing(path) as stream:
        stream.write(json.dumps(defined, indent=2, allow_nan=False).encode() + b"\n")
