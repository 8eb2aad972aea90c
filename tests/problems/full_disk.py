"""A disk that is full for one writer."""

from __future__ import annotations

from pathlib import Path

import pytest

from lmbm_torch import files


def fill(monkeypatch: pytest.MonkeyPatch, file: Path) -> None:
    """The disk is full for the next one who writes to this file: Linux says so of /dev/full."""
    begin = files._unfinished

    def full(path):
        if path != file:
            return begin(path)
        monkeypatch.setattr(files, "_unfinished", begin)
        unfinished = path.with_name(f"{path.name}.full{files.UNFINISHED}")
        unfinished.symlink_to("/dev/full")
        return unfinished, unfinished.open("wb")

    monkeypatch.setattr(files, "_unfinished", full)
