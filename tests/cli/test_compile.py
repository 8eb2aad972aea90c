"""``lmbm compile``: the first calls compile what later ones need."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import lmbm_torch
from lmbm_torch.cli import compile as command
from lmbm_torch.cli import first_calls
from lmbm_torch.kernels.jit import njit

PACKAGE = Path(lmbm_torch.__file__).parent


def test_first_calls_are_made_and_their_functions_counted(monkeypatch, capsys):
    def compiles():
        njit(lambda x: x + 1)(1)

    monkeypatch.setattr(first_calls, "FIRST_CALLS", {"one": compiles, "other": compiles, "none": int})
    monkeypatch.setattr(command, "ProcessPoolExecutor", lambda *_: ThreadPoolExecutor(1))
    command.main(["--jobs", "1"])
    assert re.search(r"^compiled 2 functions in \d+ s$", capsys.readouterr().out, re.MULTILINE)


def test_no_processes_are_refused(capsys):
    with pytest.raises(SystemExit):
        command.main(["--jobs", "0"])
    assert "--jobs: expected a number of at least 1, got 0" in capsys.readouterr().err


@pytest.mark.slow
def test_all_is_compiled_once(tmp_path):
    shutil.copytree(PACKAGE, tmp_path / "lmbm_torch", ignore=shutil.ignore_patterns("__pycache__"))
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    said = [
        subprocess.run(
            [sys.executable, "-m", "lmbm_torch.cli.compile", "--jobs", jobs],
            env=environment, cwd=tmp_path, capture_output=True, text=True, check=True,
        ).stdout
        for jobs in ("2", "1")
    ]  # fmt: skip
    counts = [int(re.search(r"compiled (\d+) functions", text)[1]) for text in said]
    assert counts[0] > 200
    assert counts[1] == 0
