"""The configuration that Hydra composes: YAML files in an installed package, or beside that of a clone."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).parents[1]
_FOLDER = _PACKAGE / "conf"
CONFIGURATION = str(_FOLDER if _FOLDER.is_dir() else _PACKAGE.parent / "conf")
