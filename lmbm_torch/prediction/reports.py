"""Metrics as a file."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path


def write_metrics(path: Path, metrics: Mapping[str, float]) -> None:
    """As JSON, with null for what is not defined; the file appears complete or not at all."""
    defined = {name: value if math.isfinite(value) else None for name, value in metrics.items()}
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(defined, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    partial.replace(path)
