"""The configuration that Hydra composes: the YAML files of the package."""

from __future__ import annotations

from pathlib import Path

CONFIGURATION = str(Path(__file__).parents[1] / "conf")
