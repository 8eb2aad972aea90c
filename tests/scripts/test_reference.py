"""The API reference has a page for every module, and shows shapes and formulas as they are written."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "scripts" / "reference.py"


def test_the_reference_of_a_package(tmp_path):
    # In a process of its own, since it changes what packages list.
    command = [sys.executable, str(SCRIPT), "lmbm_torch.losses", "--output", str(tmp_path)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert "index.html" in run.stdout
    package = (tmp_path / "lmbm_torch" / "losses.html").read_text(encoding="utf-8")
    assert "losses/hinge.html" in package
    assert 'id="local_hinge"' in package
    module = (tmp_path / "lmbm_torch" / "losses" / "hinge.html").read_text(encoding="utf-8")
    assert 'id="local_hinge"' in module
    assert "batch labels" in module
    assert "Raises:" in module
    # References of one docstring to another are links, not markup left over.
    assert ":class:`" not in module
