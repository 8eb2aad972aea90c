"""The scripts, and what the tests of training work on, can be imported here."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[2] / "scripts"), str(Path(__file__).parents[1] / "training")]
